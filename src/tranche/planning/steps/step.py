"""What every kind of step answers for itself, and what it takes from its holders.

Guards, blockers and saved plans ask any step what it takes. No code outside this package and the acts asks for a step's kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, assert_never

from tranche.core.allocation import Slice, WholeGpu
from tranche.core.errors import TrancheError, VerificationFailed
from tranche.core.grid import PlacedInstance, Placement
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.state import GpuState, InstanceKey, MigMode


@dataclass(frozen=True, slots=True)
class TakesInstance:
    """The instance in that slot goes: it must have no holder and no process."""

    occupant: PlacedInstance


@dataclass(frozen=True, slots=True)
class TakesRoom:
    """An instance will be in that slot: none of its memory slices may be promised to others."""

    occupant: PlacedInstance


@dataclass(frozen=True, slots=True)
class TakesGpu:
    """The whole GPU is disturbed: it must have no holder, no process and no instances."""


@dataclass(frozen=True, slots=True)
class TakesSharing:
    """The device, the instance in that slot or else the GPU, can no longer be shared: no one may hold a part of it."""

    occupant: PlacedInstance | None


Taking = TakesInstance | TakesRoom | TakesGpu | TakesSharing


class PriorState(NamedTuple):
    """What a step found: the GPU's mode, and the contents of its slot (None: no instance; empty: one without slices).

    `owned` says whether Tranche had made the instance in the slot. `extra` is what else a kind of step needs for its undo, in
    that kind's own words.
    """

    mode: MigMode
    slices: tuple[ProfileName, ...] | None = None
    owned: bool = False
    extra: str = ""


class PriorSlotState(NamedTuple):
    """An inverse: the slot as it was before, with an instance of those slices, or without one if `slices` is None."""

    key: InstanceKey
    slices: tuple[ProfileName, ...] | None
    owned: bool


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """One small idempotent change of one GPU, as data. The class name is the kind's name in plans, journals and events."""

    gpu_uuid: str

    # A summary counts steps by verb and noun: `created 3 instances`.
    summary_words: ClassVar[tuple[str, str]]
    # Whether the kind is part of a MIG mode change; whether it makes or destroys instances; whether it resets the GPU.
    changes_mode: ClassVar[bool] = False
    changes_cut: ClassVar[bool] = False
    resets: ClassVar[bool] = False

    @abstractmethod
    def __str__(self) -> str:
        """The step as an order, for people: `create 1g.5gb at 0:1`."""

    def fields(self) -> dict[str, Any]:
        """The step's data beyond its kind and its GPU, as JSON data."""
        return {}

    @classmethod
    @abstractmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step of that GPU from its fields; raises KeyError, TypeError, ValueError or TrancheError if they are missing."""

    @abstractmethod
    def in_effect(self, gpu: GpuState) -> bool:
        """Whether the GPU already shows the step's effect, so that it is needless."""

    @abstractmethod
    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU as the step should leave it; unchanged if the step is already in effect."""

    @property
    @abstractmethod
    def takes(self) -> tuple[Taking, ...]:
        """Everything that the step takes from its holders. Empty means that it disturbs no one."""

    def meets(self, place: Placement) -> bool:
        """Whether the step takes something of that place of its GPU."""
        for taking in self.takes:
            match taking:
                case TakesInstance(there) | TakesRoom(there):
                    if there.placement.overlaps(place):
                        return True
                case TakesSharing(of):
                    if of is None or of.placement.overlaps(place):
                        return True
                case TakesGpu():
                    return True
                case _:
                    assert_never(taking)
        return False

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """What the step will find on the GPU, at least its mode; `owned` names the instances that Tranche made."""
        return PriorState(gpu.mode)

    @abstractmethod
    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step | PriorSlotState, ...]:
        """What restores the GPU, in order, if the step may have acted on it and found `before`."""

    def ownership(self, before: PriorState) -> Mapping[InstanceKey, bool]:
        """The new owners of instances that the step made or destroyed: True Tranche, False no longer. Empty by default."""
        return {}

    def not_shown(self, after: GpuState) -> TrancheError:
        """The error if the driver accepted the step but the GPU does not show its effect afterwards."""
        return VerificationFailed(
            f"{after.label}: the driver accepted '{self}', but the GPU does not show it",
            hint="compare with: nvidia-smi mig -lgi",
        )

    @property
    def action(self) -> str:
        """The name of the step's kind."""
        return type(self).__name__

    @property
    def lets_in(self) -> WholeGpu | Slice | None:
        """The device that admits one more client by a daemon after the step."""
        return None

    @property
    def destroys(self) -> InstanceKey | None:
        """The slot of the instance that the step removes."""
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
                return InstanceKey(self.gpu_uuid, *taking.occupant)
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
