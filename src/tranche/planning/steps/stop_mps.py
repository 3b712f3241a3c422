"""The step that ends the MPS daemon of a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tranche.core.errors import MpsFailed
from tranche.core.state import GpuState, InstanceKey
from tranche.planning.steps.device_step import DeviceStep, occupant_of
from tranche.planning.steps.step import PriorState, Step, StepSummary
from tranche.planning.steps.taking import TakesSharing, Taking


@dataclass(frozen=True, slots=True)
class StopMps(DeviceStep):
    """End the daemon of the device with its servers; a GPU that is not cut gets the compute mode back that it had before."""

    def __str__(self) -> str:
        return f"end the MPS daemon of {self.place}"

    @property
    def summary_words(self) -> StepSummary:
        """Counted by devices."""
        return StepSummary("ended the MPS daemon of", "device")

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step on that device."""
        return cls(gpu_uuid, occupant_of(data))

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether the device has no daemon of Tranche's, living or dead."""
        return self.daemon(gpu) is None

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU without that daemon. The compute mode is what the daemon's own record says, which no plan foresees."""
        gone = self.daemon(gpu)
        return gpu if gone is None else replace(gpu, daemons=tuple(each for each in gpu.daemons if each is not gone))

    @property
    def takes(self) -> tuple[Taking, ...]:
        """The sharing of the device."""
        return (TakesSharing(self.occupant),)

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """Nothing beside the mode."""
        return PriorState(gpu.mode)

    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step, ...]:
        """Nothing: whoever shares the device next has a daemon started."""
        return ()

    def not_shown(self, after: GpuState) -> MpsFailed:
        """Something of the daemon is still there."""
        return MpsFailed(
            f"{after.label}: the MPS daemon of {self.place} does not end",
            hint="see what holds it: nvidia-smi; its log lies in the state folder, under mps",
        )
