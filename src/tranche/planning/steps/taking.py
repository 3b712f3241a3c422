"""What a step takes from whoever may have it. Guards, blockers and saved plans ask this, whatever the step's kind."""

from __future__ import annotations

from dataclasses import dataclass

from tranche.core.grid import PlacedInstance


@dataclass(frozen=True, slots=True)
class TakesInstance:
    """The instance in that slot goes: nobody may hold it or run in it."""

    occupant: PlacedInstance


@dataclass(frozen=True, slots=True)
class TakesRoom:
    """An instance comes to be in that slot: none of its memory slices may be promised to anybody else."""

    occupant: PlacedInstance


@dataclass(frozen=True, slots=True)
class TakesGpu:
    """The GPU as a whole is disturbed: nobody may hold any of it or run on it, and it may have no instances."""


@dataclass(frozen=True, slots=True)
class TakesSharing:
    """A device can no longer be shared: nobody may hold a part of it. It is the instance in that slot, or without one the GPU."""

    occupant: PlacedInstance | None


Taking = TakesInstance | TakesRoom | TakesGpu | TakesSharing
