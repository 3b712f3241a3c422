"""The steps of MIG: switch a GPU's mode; create, cut inside or destroy an instance."""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from tranche.core.errors import ModeChangePending
from tranche.core.grid import PlacedInstance, Placement, creation_order, lowest_start
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.state import ComputeInstance, GpuInstance, GpuState, InstanceKey, MigMode, taken_mask
from tranche.planning.steps.step import (
    PriorSlotState,
    PriorState,
    Step,
    TakesGpu,
    TakesInstance,
    TakesRoom,
    Taking,
)


@dataclass(frozen=True, slots=True)
class ModeStep(Step, ABC):
    """A step of a MIG mode change, which affects the whole GPU."""

    changes_mode: ClassVar[bool] = True

    @property
    def takes(self) -> tuple[Taking, ...]:
        """The whole GPU."""
        return (TakesGpu(),)

    def not_shown(self, after: GpuState) -> ModeChangePending:
        """The change stays pending."""
        return ModeChangePending(
            f"{after.label}: MIG mode is {after.mode}; the change to {after.pending_mode} is still pending",
            hint="a process is still using the GPU: stop it or reboot the machine, then run the command again",
        )


@dataclass(frozen=True, slots=True)
class SetMigMode(ModeStep):
    """Ask the driver for a MIG mode. On Ampere it stays pending until a reset."""

    summary_words: ClassVar[tuple[str, str]] = ("set the MIG mode of", "GPU")
    enabled: bool

    def __str__(self) -> str:
        return f"{'enable' if self.enabled else 'disable'} MIG mode"

    def fields(self) -> dict[str, Any]:
        """`enabled`: whether MIG mode is to be on."""
        return {"enabled": self.enabled}

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step with that mode."""
        return cls(gpu_uuid, bool(data["enabled"]))

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether the mode is in effect, or waits only for a reset."""
        return gpu.pending_mode is self._mode and (gpu.mode is self._mode or gpu.mode_change_needs_reset)

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU in that mode, or with that mode pending."""
        return replace(gpu, pending_mode=self._mode, mode=gpu.mode if gpu.mode_change_needs_reset else self._mode)

    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step, ...]:
        """Restores the previous mode, with a reset if the other one took effect by a reset."""
        if now.pending_mode is before.mode and now.mode is before.mode:
            return ()
        ask = SetMigMode(now.uuid, before.mode is MigMode.ENABLED)
        if now.mode_change_needs_reset and now.mode is not before.mode:
            return (ask, ResetGpu(now.uuid))
        return (ask,)

    @property
    def _mode(self) -> MigMode:
        return MigMode.ENABLED if self.enabled else MigMode.DISABLED


@dataclass(frozen=True, slots=True)
class ResetGpu(ModeStep):
    """Reset one GPU, so that its pending MIG mode takes effect."""

    summary_words: ClassVar[tuple[str, str]] = ("reset", "GPU")
    resets: ClassVar[bool] = True

    def __str__(self) -> str:
        return "reset the GPU"

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step."""
        return cls(gpu_uuid)

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether no change of MIG mode is pending."""
        return not gpu.mode_pending

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU in its pending mode; a reset removes every instance."""
        return gpu if self.in_effect(gpu) else replace(gpu, mode=gpu.pending_mode, instances=())

    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step, ...]:
        """Nothing: the mode change that it completed is undone with a reset of its own."""
        return ()


@dataclass(frozen=True, slots=True)
class SlotStep(Step, ABC):
    """A step on the instance of that profile and placement."""

    changes_cut: ClassVar[bool] = True
    profile: ProfileName
    placement: Placement

    @property
    def key(self) -> InstanceKey:
        """The slot."""
        return InstanceKey(self.gpu_uuid, self.profile, self.placement)

    @property
    def occupant(self) -> PlacedInstance:
        """The slot on its GPU's grid."""
        return PlacedInstance(self.profile, self.placement)

    def instance(self, gpu: GpuState) -> GpuInstance | None:
        """The instance in the slot, when it has the step's profile."""
        return gpu.instance_in(self.occupant)

    def fields(self) -> dict[str, Any]:
        """`profile`, and `start` and `size` of the placement in memory slices."""
        return place_fields(self.occupant)

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """The contents of the slot, and whether Tranche made them."""
        instance = self.instance(gpu)
        return PriorState(gpu.mode) if instance is None else PriorState(gpu.mode, instance.slices, self.key in owned)


def place_fields(place: PlacedInstance) -> dict[str, Any]:
    """The profile and the placement as JSON data."""
    return {"profile": str(place.profile), "start": place.placement.start, "size": place.placement.size}


def slot_fields(data: Mapping[str, Any]) -> tuple[ProfileName, Placement]:
    """The profile and the placement that place_fields wrote."""
    return parse_profile(data["profile"]), Placement(int(data["start"]), int(data["size"]))


@dataclass(frozen=True, slots=True)
class CreateInstance(SlotStep):
    """Create a GPU instance of that profile at that placement, cut inside into `slices` (names of compute instances)."""

    summary_words: ClassVar[tuple[str, str]] = ("created", "instance")
    slices: tuple[ProfileName, ...]

    def __str__(self) -> str:
        inside = (
            "" if self.slices == (self.profile,) else " with " + (", ".join(map(str, self.slices)) or "nothing inside")
        )
        return f"create {self.profile} at {self.placement}{inside}"

    def fields(self) -> dict[str, Any]:
        """The slot, and `slices`."""
        return {**SlotStep.fields(self), "slices": [str(name) for name in self.slices]}

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step on that slot with those slices."""
        return cls(gpu_uuid, *slot_fields(data), tuple(parse_profile(name) for name in data["slices"]))

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether the instance is there and holds exactly those slices."""
        instance = self.instance(gpu)
        return instance is not None and instance.slices == tuple(sorted(self.slices))

    def missing(self, instance: GpuInstance | None) -> tuple[ProfileName, ...]:
        """The slices that the instance lacks, in an order in which all fit, or else largest first."""
        present = () if instance is None else instance.compute_instances
        missing = tuple((Counter(self.slices) - Counter(each.name for each in present)).elements())
        order = creation_order(missing, self.profile.slices, taken_mask(present))
        return tuple(sorted(missing, key=lambda name: -name.compute)) if order is None else order

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU with that instance. The driver assigns ids and UUIDs; here they are -1 and empty."""
        profile = gpu.profile(self.profile)
        present = self.instance(gpu)
        instance = present or GpuInstance(
            id=-1,
            profile=self.profile,
            profile_id=-1 if profile is None or profile.id is None else profile.id,
            placement=self.placement,
            memory=None if profile is None else profile.memory,
        )
        inside = list(instance.compute_instances)
        for name in self.missing(present):
            start = lowest_start(name.compute, self.profile.slices, taken_mask(inside))
            # A driver refuses a slice without room; a slice larger than the instance plainly cannot be made.
            start = self.profile.slices if start is None else start
            inside.append(ComputeInstance(-1, name, -1, start, name.compute, "", None))
        made = instance._replace(compute_instances=tuple(inside))
        others = tuple(each for each in gpu.instances if each is not present)
        return replace(gpu, instances=(*others, made))

    @property
    def takes(self) -> tuple[Taking, ...]:
        """The room on the grid."""
        return (TakesRoom(self.occupant),)

    def inverse(self, before: PriorState, now: GpuState) -> tuple[PriorSlotState, ...]:
        """The empty slot. An instance that was there before was idle, and stays as it is."""
        if before.slices is not None or self.instance(now) is None:
            return ()
        return (PriorSlotState(self.key, None, owned=False),)

    def ownership(self, before: PriorState) -> Mapping[InstanceKey, bool]:
        """An instance that the step made is Tranche's; one that it only cut inside keeps its owner."""
        return {self.key: True} if before.slices is None else {}


@dataclass(frozen=True, slots=True)
class DestroyInstance(SlotStep):
    """Destroy the GPU instance of that profile and placement, its compute instances first."""

    summary_words: ClassVar[tuple[str, str]] = ("destroyed", "instance")

    def __str__(self) -> str:
        return f"destroy {self.profile} at {self.placement}"

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step on that slot."""
        return cls(gpu_uuid, *slot_fields(data))

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether no instance of the profile is there."""
        return self.instance(gpu) is None

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU without that instance."""
        gone = self.instance(gpu)
        return gpu if gone is None else replace(gpu, instances=tuple(i for i in gpu.instances if i is not gone))

    @property
    def takes(self) -> tuple[Taking, ...]:
        """The instance."""
        return (TakesInstance(self.occupant),)

    def inverse(self, before: PriorState, now: GpuState) -> tuple[PriorSlotState, ...]:
        """The same instance again, with the same UUIDs, because the driver derives them from the slot."""
        return () if before.slices is None else (PriorSlotState(self.key, before.slices, before.owned),)

    def ownership(self, before: PriorState) -> Mapping[InstanceKey, bool]:
        """A destroyed instance is no longer Tranche's."""
        return {self.key: False}
