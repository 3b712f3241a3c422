"""Undoing as a pure function: on a model of one GPU, every crash of every plan leads back to where the plan began."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grid_model import free_placements
from tests.strategies import FAMILY_BOARDS, boards, gpu_on, instance_of, occupant_lists, placed
from tranche.core.board import GpuInstanceProfile
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName
from tranche.core.state import GpuState, InstanceKey, MigMode
from tranche.planning.steps import (
    CreateInstance,
    DestroyInstance,
    PriorState,
    ResetGpu,
    SetMigMode,
    Step,
    TakesGpu,
    TakesInstance,
    TakesRoom,
    TakesSharing,
)
from tranche.planning.steps.plan import StepRecord, StepStatus, undo_steps

A100 = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")


@dataclass(frozen=True, slots=True)
class Story:
    """A GPU, and steps that can be carried out on it one after the other."""

    gpu: GpuState
    steps: tuple[Step, ...]


def carry_out(gpu: GpuState, step: Step) -> GpuState:
    """The GPU after the step; asserts that the driver would not refuse."""
    for taking in step.takes:
        match taking:
            case TakesGpu():
                assert not gpu.instances
            case TakesSharing():
                pass
            case TakesInstance(slot):
                assert gpu.instance_in(slot) is not None
            case TakesRoom(slot):
                assert gpu.mig_enabled
                assert not any(slot.conflicts(each) for each in gpu.occupants if each != slot)
            case _:
                assert_never(taking)
    return step.apply(gpu)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    board = draw(boards())
    mode = draw(st.sampled_from([MigMode.ENABLED, MigMode.ENABLED, MigMode.DISABLED]))
    start = gpu_on(board, mode=mode)
    for profile, spot in draw(occupant_lists(board)) if start.mig_enabled else ():
        start = carry_out(start, CreateInstance(start.uuid, profile.name, spot, draw(inside(profile))))
    gpu, steps = start, []

    def do(step: Step) -> None:
        nonlocal gpu
        steps.append(step)
        gpu = carry_out(gpu, step)

    switch = draw(st.booleans())
    for instance in gpu.instances:
        if switch or draw(st.booleans()):
            do(DestroyInstance(gpu.uuid, instance.profile, instance.placement))
    if switch:
        do(SetMigMode(gpu.uuid, not gpu.mig_enabled))
        if gpu.mode_change_needs_reset:
            do(ResetGpu(gpu.uuid))
    if gpu.mig_enabled:
        for profile in draw(st.lists(st.sampled_from(placed(board)), max_size=5)):
            if spots := free_placements(profile, gpu.occupants):
                do(CreateInstance(gpu.uuid, profile.name, draw(st.sampled_from(spots)), draw(inside(profile))))
    return Story(start, tuple(steps))


@st.composite
def inside(draw: st.DrawFn, profile: GpuInstanceProfile) -> tuple[ProfileName, ...]:
    if profile.slices == 1 or draw(st.integers(0, 2)):
        return (profile.name,)
    single = profile.name._replace(compute=1)
    return (single,) * draw(st.integers(0, profile.slices))


def journaled(story: Story, reached: int, *, acted: bool, finished: bool) -> tuple[GpuState, list[StepRecord]]:
    """The GPU and the journal when the process was killed in the step of that number."""
    gpu, records = story.gpu, []
    owned: frozenset[InstanceKey] = frozenset()
    for number, step in enumerate(story.steps):
        if number > reached:
            records.append(StepRecord(step, StepStatus.PENDING))
            continue
        before = step.observe(gpu, owned)
        if number < reached or acted:
            gpu = carry_out(gpu, step)
        done = number < reached or (acted and finished)
        records.append(StepRecord(step, StepStatus.DONE if done else StepStatus.INTENDED, before))
    return gpu, records


def undo(gpu: GpuState, records: list[StepRecord], *, stop_after: int | None = None) -> GpuState:
    """Carry the undoing out, or only so many of its steps."""
    for step, _ in undo_steps(records, gpu)[:stop_after]:
        if not step.in_effect(gpu):
            gpu = carry_out(gpu, step)
    return gpu


def cut(gpu: GpuState) -> tuple[object, ...]:
    slots = {(gpu.key(instance), instance.slices) for instance in gpu.instances}
    return gpu.mode, gpu.pending_mode, slots


@settings(deadline=None)
@given(stories(), st.integers(0, 20), st.booleans(), st.booleans())
def test_undoing_leads_back_to_where_the_plan_began(story: Story, reached: int, acted: bool, finished: bool) -> None:
    gpu, records = journaled(story, reached, acted=acted, finished=finished)
    assert cut(undo(gpu, records)) == cut(story.gpu)


@settings(deadline=None)
@given(stories(), st.integers(0, 20), st.booleans(), st.lists(st.integers(0, 6), max_size=3))
def test_an_undoing_that_was_itself_interrupted_can_be_done_again(
    story: Story, reached: int, acted: bool, interruptions: list[int]
) -> None:
    gpu, records = journaled(story, reached, acted=acted, finished=False)
    for stop_after in interruptions:
        gpu = undo(gpu, records, stop_after=stop_after)
    assert cut(undo(gpu, records)) == cut(story.gpu)


@settings(deadline=None)
@given(stories())
def test_a_plan_that_has_not_begun_needs_no_undoing(story: Story) -> None:
    records = [StepRecord(step, StepStatus.PENDING) for step in story.steps]
    assert undo_steps(records, story.gpu) == ()
    needless = [StepRecord(step, StepStatus.NEEDLESS) for step in story.steps]
    assert undo_steps(needless, story.gpu) == ()


@settings(deadline=None)
@given(stories(), st.integers(0, 20))
def test_only_slots_of_the_plan_are_touched(story: Story, reached: int) -> None:
    gpu, records = journaled(story, reached, acted=True, finished=True)
    slots = {step.creates or step.destroys for step in story.steps}
    for step, _ in undo_steps(records, gpu):
        assert (step.creates or step.destroys) in slots | {None}


def test_steps_of_other_gpus_are_none_of_this_gpu_s_business() -> None:
    board = A100
    gpu, other = gpu_on(board), gpu_on(board, 1)
    step = CreateInstance(other.uuid, placed(board)[0].name, Placement(0, 1), (placed(board)[0].name,))
    there = replace(gpu, instances=(instance_of(placed(board)[0], Placement(0, 1)),))
    assert undo_steps([StepRecord(step, StepStatus.DONE, PriorState(MigMode.ENABLED, None))], there) == ()


def test_an_instance_that_was_there_and_only_got_slices_stays() -> None:
    """It was idle before and is harmless now; destroying it could take it from somebody else."""
    board = A100
    profile = placed(board)[0]
    gpu = gpu_on(board, instances=(instance_of(profile, Placement(0, profile.size)),))
    step = CreateInstance(gpu.uuid, profile.name, Placement(0, profile.size), (profile.name,))
    assert undo_steps([StepRecord(step, StepStatus.DONE, PriorState(MigMode.ENABLED, ()))], gpu) == ()
