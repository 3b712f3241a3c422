"""Undoing a plan: the steps that restore a GPU, from its journaled steps and its present state.

It starts from the present state, so it can be computed and run again after another crash. It touches only slots that the plan
itself changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tranche.core.state import GpuState, InstanceKey
from tranche.planning.steps import CreateInstance, DestroyInstance, PriorSlotState, PriorState, Step


class StepStatus(StrEnum):
    """PENDING: not begun. INTENDED: may have acted. DONE: acted. NEEDLESS: its effect was there already."""

    PENDING = "pending"
    INTENDED = "intended"
    DONE = "done"
    NEEDLESS = "needless"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step as the journal has it."""

    step: Step
    status: StepStatus
    before: PriorState | None = None

    @property
    def may_have_acted(self) -> bool:
        """Whether the step can have changed the GPU."""
        return self.status in (StepStatus.INTENDED, StepStatus.DONE)


@dataclass(frozen=True, slots=True)
class _UndoStep:
    """A step that restores something, and the owners of instances after it: True Tranche, False no longer."""

    step: Step
    ownership: Mapping[InstanceKey, bool] = field(default_factory=dict)


def undo_steps(records: Sequence[StepRecord], now: GpuState) -> tuple[_UndoStep, ...]:
    """The steps that restore one GPU to its state before these steps of a plan, last change first."""
    undo: list[_UndoStep] = []
    for record in reversed(records):
        if record.step.gpu_uuid == now.uuid and record.before is not None and record.may_have_acted:
            undo += (_undo_step(inverse) for inverse in record.step.inverse(record.before, now))
    return tuple(undo)


def _undo_step(inverse: Step | PriorSlotState) -> _UndoStep:
    if not isinstance(inverse, PriorSlotState):
        return _UndoStep(inverse)
    key = inverse.key
    step = (
        DestroyInstance(key.gpu_uuid, key.profile, key.placement)
        if inverse.slices is None
        else CreateInstance(key.gpu_uuid, key.profile, key.placement, inverse.slices)
    )
    return _UndoStep(step, {key: inverse.owned})
