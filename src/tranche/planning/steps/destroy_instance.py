"""The step that destroys a GPU instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tranche.core.state import GpuState, InstanceKey
from tranche.planning.steps.slot_step import SlotStep, slot_fields
from tranche.planning.steps.step import PriorSlotState, PriorState, StepSummary
from tranche.planning.steps.taking import TakesInstance, Taking


@dataclass(frozen=True, slots=True)
class DestroyInstance(SlotStep):
    """Destroy the GPU instance of that profile and placement, its compute instances first."""

    def __str__(self) -> str:
        return f"destroy {self.profile} at {self.placement}"

    @property
    def summary_words(self) -> StepSummary:
        """Counted by instances."""
        return StepSummary("destroyed", "instance")

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
        """The same instance again; it has its UUIDs back, because the driver derives them from the slot."""
        return () if before.slices is None else (PriorSlotState(self.key, before.slices, before.owned),)

    def ownership(self, before: PriorState) -> Mapping[InstanceKey, bool]:
        """What is gone is nobody's."""
        return {self.key: False}
