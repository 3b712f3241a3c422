"""The step that resets one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tranche.core.state import GpuState
from tranche.planning.steps.mode_step import ModeStep
from tranche.planning.steps.step import PriorState, Step, StepSummary


@dataclass(frozen=True, slots=True)
class ResetGpu(ModeStep):
    """Reset one GPU, so that its pending MIG mode becomes effective."""

    def __str__(self) -> str:
        return "reset the GPU"

    @property
    def summary_words(self) -> StepSummary:
        """Counted by GPUs."""
        return StepSummary("reset", "GPU")

    def fields(self) -> dict[str, Any]:
        """Nothing beside its GPU."""
        return {}

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step."""
        return cls(gpu_uuid)

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether no change of MIG mode is pending."""
        return not gpu.mode_pending

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU in its pending mode; a reset takes every instance away."""
        return gpu if self.in_effect(gpu) else replace(gpu, mode=gpu.pending_mode, instances=())

    @property
    def resets(self) -> bool:
        """It does."""
        return True

    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step, ...]:
        """Nothing: the change of mode that it completed is undone with a reset of its own."""
        return ()
