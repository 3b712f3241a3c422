"""The step that changes how long programs have a GPU in turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tranche.core.state import GpuState, InstanceKey
from tranche.core.timeslice import Timeslice
from tranche.planning.steps.step import PriorState, Step, StepSummary
from tranche.planning.steps.taking import Taking


@dataclass(frozen=True, slots=True)
class SetTimeslice(Step):
    """Set the length of time slices on a GPU that is not cut; None puts back what was there before Tranche set one."""

    length: Timeslice | None

    def __str__(self) -> str:
        return "put the time slice back" if self.length is None else f"set the time slice to {self.length}"

    @property
    def summary_words(self) -> StepSummary:
        """Counted by GPUs."""
        return StepSummary("set the time slice of", "GPU")

    def fields(self) -> dict[str, Any]:
        """`timeslice`: its word; null to put it back."""
        return {"timeslice": None if self.length is None else str(self.length)}

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step with that length."""
        return cls(gpu_uuid, None if data["timeslice"] is None else Timeslice(data["timeslice"]))

    @property
    def changes_cut(self) -> bool:
        """It does not."""
        return False

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether Tranche has set that length; for None, whether it has set none."""
        return gpu.timeslice is self.length

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU with that length."""
        return gpu if self.in_effect(gpu) else replace(gpu, timeslice=self.length)

    @property
    def takes(self) -> tuple[Taking, ...]:
        """Nothing: whoever shares the GPU has turns of another length."""
        return ()

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """The length that Tranche had set before."""
        return PriorState(gpu.mode, extra="" if gpu.timeslice is None else str(gpu.timeslice))

    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step, ...]:
        """The length that Tranche had set before; what was there without Tranche, where it had set none."""
        step = SetTimeslice(self.gpu_uuid, Timeslice(before.extra) if before.extra else None)
        return () if step.in_effect(now) else (step,)
