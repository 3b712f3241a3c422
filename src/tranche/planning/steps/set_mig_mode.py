"""The step that asks the driver for a MIG mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tranche.core.state import GpuState, MigMode
from tranche.planning.steps.mode_step import ModeStep
from tranche.planning.steps.reset_gpu import ResetGpu
from tranche.planning.steps.step import PriorState, Step, StepSummary


@dataclass(frozen=True, slots=True)
class SetMigMode(ModeStep):
    """Ask the driver for a MIG mode. On Ampere it stays pending until a reset."""

    enabled: bool

    def __str__(self) -> str:
        return f"{'enable' if self.enabled else 'disable'} MIG mode"

    @property
    def summary_words(self) -> StepSummary:
        """Counted by GPUs."""
        return StepSummary("set the MIG mode of", "GPU")

    def fields(self) -> dict[str, Any]:
        """`enabled`: whether MIG mode is to be on."""
        return {"enabled": self.enabled}

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step with that mode."""
        return cls(gpu_uuid, bool(data["enabled"]))

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether the mode is effective, or waits for nothing but a reset."""
        return gpu.pending_mode is self._mode and (gpu.mode is self._mode or gpu.mode_change_needs_reset)

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU in that mode, or with that mode pending."""
        return replace(gpu, pending_mode=self._mode, mode=gpu.mode if gpu.mode_change_needs_reset else self._mode)

    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step, ...]:
        """The mode as it was, with a reset where the other one became effective by a reset."""
        if now.pending_mode is before.mode and now.mode is before.mode:
            return ()
        ask = SetMigMode(now.uuid, before.mode is MigMode.ENABLED)
        if now.mode_change_needs_reset and now.mode is not before.mode:
            return (ask, ResetGpu(now.uuid))
        return (ask,)

    @property
    def _mode(self) -> MigMode:
        return MigMode.ENABLED if self.enabled else MigMode.DISABLED
