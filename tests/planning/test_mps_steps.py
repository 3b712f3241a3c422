"""The steps that start and end MPS daemons: what they say, when they are in effect, and what undoes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planning.test_daemons import CUT, GIB, SLICE, T4, THERE, served
from tranche.core.grid import PlacedInstance
from tranche.core.state import ComputeMode, DaemonState, GpuState
from tranche.planning.steps import PriorState, StartMps, StopMps, TakesSharing, step_from_dict
from tranche.planning.steps.step import before_from_dict, before_to_dict


@pytest.mark.parametrize("occupant", [None, THERE])
def test_a_step_survives_being_written_down(occupant: PlacedInstance | None) -> None:
    for step in (StartMps("GPU-0", occupant, 3 * GIB), StopMps("GPU-0", occupant)):
        assert step_from_dict(step.to_dict()) == step
        assert ("profile" in step.to_dict()) is (occupant is not None)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (T4, False),
        (served(T4), True),
        (served(T4, limit=2 * GIB), False),
        (served(T4, state="starting"), False),
        (served(T4, state="lost"), False),
        (served(T4, state="fault"), False),
        (replace(served(T4), compute_mode=ComputeMode.DEFAULT), False),
    ],
)
def test_a_device_is_shared_when_a_daemon_serves_it_and_nobody_can_pass_it_by(gpu: GpuState, expected: bool) -> None:
    assert StartMps(gpu.uuid, None, 3 * GIB).in_effect(gpu) is expected
    assert StopMps(gpu.uuid, None).in_effect(gpu) is (gpu is T4)


def test_a_slice_is_shared_whatever_the_compute_mode_of_its_gpu() -> None:
    gpu = served(CUT, SLICE.slot)
    assert StartMps(gpu.uuid, THERE, 3 * GIB).in_effect(gpu)
    assert not StartMps(gpu.uuid, None, 3 * GIB).in_effect(gpu)
    assert StartMps(gpu.uuid, THERE, 3 * GIB).device_uuid(gpu) == gpu.instances[0].compute_instances[0].uuid


def test_a_daemon_of_the_device_that_the_slot_held_before_is_another_devices() -> None:
    gpu = served(CUT, SLICE.slot)
    before = replace(gpu, daemons=(replace(gpu.daemons[0], device_uuid="MIG-before"),))
    step = StartMps(gpu.uuid, THERE, 3 * GIB)
    assert not step.in_effect(before)
    assert step.apply(before) == gpu


@pytest.mark.parametrize("before", [T4, served(T4, limit=GIB), served(T4, limit=8 * GIB, state="lost")])
def test_what_is_expected_of_a_step_is_what_it_asks_for(before: GpuState) -> None:
    start = StartMps(before.uuid, None, 3 * GIB)
    after = start.apply(before)
    assert start.in_effect(after)
    assert start.apply(after) is after
    assert len(after.daemons) == 1
    assert after.fingerprint == before.fingerprint
    assert StopMps(before.uuid, None).in_effect(StopMps(before.uuid, None).apply(after))


def test_a_start_takes_nothing_and_an_end_takes_the_sharing() -> None:
    assert StartMps("GPU-0", None, GIB).takes == ()
    assert StopMps("GPU-0", THERE).takes == (TakesSharing(THERE),)


def test_a_start_is_undone_by_the_end_of_the_daemon_unless_one_was_there() -> None:
    start = StartMps(T4.uuid, None, 3 * GIB)
    after = start.apply(T4)
    fresh, raised = start.observe(T4, frozenset()), start.observe(served(T4, limit=GIB), frozenset())
    assert start.inverse(before_from_dict(before_to_dict(fresh)), after) == (StopMps(T4.uuid, None),)
    assert start.inverse(before_from_dict(before_to_dict(raised)), after) == ()
    assert StopMps(T4.uuid, None).inverse(PriorState(T4.mode), T4) == ()


def test_people_read_what_is_shared_and_how_much_each_may_have() -> None:
    assert str(StartMps("GPU-0", None, 3 * GIB)) == "share the GPU by MPS, at most 3 GiB each"
    assert str(StopMps("GPU-0", THERE)) == "end the MPS daemon of 3g.20gb at 0:4"
    assert DaemonState.LOST in str(served(T4, state="lost").daemons[0].state)
