"""The step that resets one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tranche.core.errors import ModeChangePending
from tranche.core.state import GpuState, InstanceKey
from tranche.planning.steps.step import Before, Deed, Step
from tranche.planning.steps.taking import TakesGpu, Taking


@dataclass(frozen=True, slots=True)
class ResetGpu(Step):
    """Reset one GPU, so that its pending MIG mode becomes effective."""

    def __str__(self) -> str:
        return "reset the GPU"

    @property
    def deed(self) -> Deed:
        """Counted by GPUs."""
        return Deed("reset", "GPU")

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
    def takes(self) -> tuple[Taking, ...]:
        """The whole GPU."""
        return (TakesGpu(),)

    @property
    def changes_mode(self) -> bool:
        """It completes a change of MIG mode."""
        return True

    @property
    def resets(self) -> bool:
        """It does."""
        return True

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> Before:
        """The mode that is effective now."""
        return Before(gpu.mode)

    def inverse(self, before: Before, now: GpuState) -> tuple[Step, ...]:
        """Nothing: the change of mode that it completed is undone with a reset of its own."""
        return ()

    def not_shown(self, after: GpuState) -> ModeChangePending:
        """The change stays pending."""
        return change_stays_pending(after)


def change_stays_pending(gpu: GpuState) -> ModeChangePending:
    """The error for a change of MIG mode that the GPU does not show."""
    return ModeChangePending(
        f"{gpu.label}: MIG mode is {gpu.mode}, the change to {gpu.pending_mode} stays pending",
        hint="something holds the GPU: stop what uses it, or reboot the machine, and run the command again",
    )
