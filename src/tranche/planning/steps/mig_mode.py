"""The two steps that bring a GPU from one MIG mode to the other."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tranche.core.errors import ModeChangePending
from tranche.core.state import GpuState, InstanceKey, MigMode
from tranche.planning.steps.step import PriorState, Step, StepSummary, TakesGpu, Taking


@dataclass(frozen=True, slots=True)
class ModeStep(Step, ABC):
    """A step of a change of MIG mode, which concerns the whole GPU."""

    @property
    def takes(self) -> tuple[Taking, ...]:
        """The whole GPU."""
        return (TakesGpu(),)

    @property
    def changes_mode(self) -> bool:
        """It does."""
        return True

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """The mode that is effective now."""
        return PriorState(gpu.mode)

    def not_shown(self, after: GpuState) -> ModeChangePending:
        """The change stays pending."""
        return ModeChangePending(
            f"{after.label}: MIG mode is {after.mode}, the change to {after.pending_mode} stays pending",
            hint="something holds the GPU: stop what uses it, or reboot the machine, and run the command again",
        )


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
