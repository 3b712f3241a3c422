"""Undoing a plan: from what was journaled of its steps and what a GPU shows now, the steps that put it back.

It works from the present state, so it may be computed and carried out again after another crash. It touches only slots that
the plan itself changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tranche.core.profile import ProfileName, parse_profile
from tranche.core.state import GpuState, InstanceKey, MigMode
from tranche.planning.plan import CreateInstance, DestroyInstance, ResetGpu, SetMigMode, Step


class StepStatus(StrEnum):
    """PENDING: not begun. INTENDED: it may or may not have acted. DONE: it acted. NEEDLESS: its effect was there already."""

    PENDING = "pending"
    INTENDED = "intended"
    DONE = "done"
    NEEDLESS = "needless"


@dataclass(frozen=True, slots=True)
class Before:
    """What a step found: the GPU's mode, and what was in the step's slot (None: no instance; empty: one without slices).

    `owned` says whether Tranche had made the instance in the slot.
    """

    mode: MigMode
    slices: tuple[ProfileName, ...] | None
    owned: bool = False


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step as the journal has it."""

    step: Step
    status: StepStatus
    before: Before | None = None

    @property
    def may_have_acted(self) -> bool:
        """Whether the step can have changed the GPU."""
        return self.status in (StepStatus.INTENDED, StepStatus.DONE)


def observe_before(gpu: GpuState, step: Step, owned: frozenset[InstanceKey]) -> Before:
    """What the step is about to find on the GPU; `owned` names the instances that Tranche made."""
    if isinstance(step, DestroyInstance | CreateInstance):
        instance = gpu.instance_at(step.placement)
        if instance is not None and instance.profile == step.profile:
            return Before(gpu.mode, instance.slices, gpu.key(instance) in owned)
    return Before(gpu.mode, None)


def undo_steps(records: Sequence[StepRecord], now: GpuState) -> tuple[Step, ...]:
    """The steps that put one GPU back to what it was before these steps of a plan, last change first."""
    undo: list[Step] = []
    for record in reversed(records):
        step, before = record.step, record.before
        if step.gpu_uuid != now.uuid or before is None or not record.may_have_acted:
            continue
        if isinstance(step, CreateInstance):
            undo += _undo_creation(step, before, now)
        elif isinstance(step, DestroyInstance) and before.slices is not None:
            undo.append(CreateInstance(step.gpu_uuid, step.profile, step.placement, before.slices))
        elif isinstance(step, SetMigMode):
            undo += _undo_mode(before, now)
    return tuple(undo)


def _undo_creation(step: CreateInstance, before: Before, now: GpuState) -> list[Step]:
    instance = now.instance_at(step.placement)
    if instance is None or instance.profile != step.profile:
        return []
    if before.slices is None:
        return [DestroyInstance(step.gpu_uuid, step.profile, step.placement)]
    # The instance was there without all its slices: it was idle then and harmless now, so it stays as it is.
    return []


def _undo_mode(before: Before, now: GpuState) -> list[Step]:
    enabled = before.mode is MigMode.ENABLED
    if now.pending_mode is before.mode and now.mode is before.mode:
        return []
    steps: list[Step] = [SetMigMode(now.uuid, enabled)]
    if now.mode_change_needs_reset and now.mode is not before.mode:
        steps.append(ResetGpu(now.uuid))
    return steps


def before_to_dict(before: Before) -> dict[str, Any]:
    """The finding as JSON data."""
    slices = None if before.slices is None else [str(name) for name in before.slices]
    return {"mode": str(before.mode), "slices": slices, "owned": before.owned}


def before_from_dict(data: Mapping[str, Any]) -> Before:
    """The finding that before_to_dict wrote."""
    slices = data["slices"]
    names = None if slices is None else tuple(parse_profile(name) for name in slices)
    return Before(MigMode(data["mode"]), names, data["owned"])
