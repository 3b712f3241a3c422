"""What every kind of step answers for itself, and what it takes from whoever may have it.

Guards, blockers and saved plans ask a step what it takes, whatever its kind. Nobody outside of this package and of the acts
asks what kind a step is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tranche.core.allocation import Slice, WholeGpu
from tranche.core.errors import TrancheError, VerificationFailed
from tranche.core.grid import PlacedInstance
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.state import GpuState, InstanceKey, MigMode


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


@dataclass(frozen=True, slots=True)
class PriorState:
    """What a step found: the GPU's mode, and what was in the step's slot (None: no instance; empty: one without slices).

    `owned` says whether Tranche had made the instance in the slot. `extra` is whatever else a kind of step needs to be undone, in
    that kind's own words.
    """

    mode: MigMode
    slices: tuple[ProfileName, ...] | None = None
    owned: bool = False
    extra: str = ""


@dataclass(frozen=True, slots=True)
class PriorSlotState:
    """An inverse: the slot as it was before, with an instance of those slices, or with none when `slices` is None."""

    key: InstanceKey
    slices: tuple[ProfileName, ...] | None
    owned: bool


@dataclass(frozen=True, slots=True)
class StepSummary:
    """How a summary counts the kind: `created 3 instances`."""

    verb: str
    noun: str


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """One small idempotent change of one GPU, as data. A kind's name in plans, journals and events is the name of its class."""

    gpu_uuid: str

    @abstractmethod
    def __str__(self) -> str:
        """The step for people, as an order: `create 1g.5gb at 0:1`."""

    @property
    @abstractmethod
    def summary_words(self) -> StepSummary:
        """What the step does, as a summary counts it."""

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """What the step says beside its kind and its GPU, as JSON data."""

    @classmethod
    @abstractmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step of that GPU with the fields in the data; KeyError, TypeError, ValueError or TrancheError without them."""

    @abstractmethod
    def in_effect(self, gpu: GpuState) -> bool:
        """Whether the GPU already shows what the step is for, so that it need not be done."""

    @abstractmethod
    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU as the step is expected to leave it; unchanged when the step is in effect already."""

    @property
    @abstractmethod
    def takes(self) -> tuple[Taking, ...]:
        """Everything that the step takes from whoever has it. An empty answer means that it disturbs nobody at all."""

    @abstractmethod
    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """What the step is about to find on the GPU; `owned` names the instances that Tranche made."""

    @abstractmethod
    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step | PriorSlotState, ...]:
        """What puts the GPU back, in order, after the step may have acted on it and found `before`."""

    def ownership(self, before: PriorState) -> Mapping[InstanceKey, bool]:
        """Whose the instances are that the step made or destroyed: True Tranche's, False no longer. None are named by default."""
        return {}

    def not_shown(self, after: GpuState) -> TrancheError:
        """What is wrong when the driver accepted the step and the GPU, seen afterwards, does not show its effect."""
        return VerificationFailed(
            f"{after.label}: the driver accepted '{self}', but the GPU does not show it",
            hint="compare with: nvidia-smi mig -lgi",
        )

    @property
    def action(self) -> str:
        """The name of the step's kind."""
        return type(self).__name__

    @property
    def changes_mode(self) -> bool:
        """Whether the step is part of a change of MIG mode."""
        return False

    @property
    def changes_cut(self) -> bool:
        """Whether the step makes or destroys instances, as far as its kind tells."""
        return not self.changes_mode

    @property
    def lets_in(self) -> WholeGpu | Slice | None:
        """The device that somebody more may share by a daemon after the step."""
        return None

    @property
    def resets(self) -> bool:
        """Whether the step resets the GPU."""
        return False

    @property
    def destroys(self) -> InstanceKey | None:
        """The slot whose instance the step takes away."""
        return self._slot(TakesInstance)

    @property
    def creates(self) -> InstanceKey | None:
        """The slot in which the step makes an instance, or cuts one inside."""
        return self._slot(TakesRoom)

    def to_dict(self) -> dict[str, Any]:
        """The step as JSON data."""
        return {"action": self.action, "gpu": self.gpu_uuid, **self.fields()}

    def _slot(self, kind: type[TakesInstance | TakesRoom]) -> InstanceKey | None:
        for taking in self.takes:
            if isinstance(taking, kind):
                return InstanceKey(self.gpu_uuid, taking.occupant.profile, taking.occupant.placement)
        return None


def before_to_dict(before: PriorState) -> dict[str, Any]:
    """The finding as JSON data."""
    slices = None if before.slices is None else [str(name) for name in before.slices]
    extra = {"extra": before.extra} if before.extra else {}
    return {"mode": str(before.mode), "slices": slices, "owned": before.owned, **extra}


def before_from_dict(data: Mapping[str, Any]) -> PriorState:
    """The finding that before_to_dict wrote."""
    slices = data["slices"]
    names = None if slices is None else tuple(parse_profile(name) for name in slices)
    return PriorState(MigMode(data["mode"]), names, data["owned"], data.get("extra", ""))
