"""Which MPS daemons a plan starts and ends, and when a device that has one lets nobody more in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.strategies import FAMILY_BOARDS, gpu_on, instance_of, placed, uncuttable_gpu
from tranche.core.allocation import FractionalShare, Grant, NodeView, Slice, WholeGpu, device_uuid
from tranche.core.grid import PlacedInstance, Placement
from tranche.core.sharing import Sharing
from tranche.core.state import (
    ComputeMode,
    DaemonState,
    GpuState,
    InstanceKey,
    MigMode,
    MpsDaemon,
    NodeState,
    unavailable,
)
from tranche.planning.steps import DestroyInstance, ResetGpu, StartMps, Step, StopMps
from tranche.planning.steps.plan import Plan, with_daemons

GIB = 2**30
T4 = uncuttable_gpu()
A100 = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")
PROFILE = next(each for each in placed(A100) if str(each.name) == "3g.20gb")
SPOT = Placement(0, PROFILE.size)
CUT = gpu_on(A100, mode=MigMode.ENABLED, instances=(instance_of(PROFILE, SPOT),))
THERE = PlacedInstance(PROFILE.name, SPOT)
SLICE = Slice(CUT.uuid, PROFILE.name, SPOT)


def part(device: WholeGpu | Slice, memory: int = 3 * GIB, sharing: Sharing = Sharing.MPS) -> FractionalShare:
    return FractionalShare(device, memory, sharing)


def served(gpu: GpuState, slot: InstanceKey | None = None, limit: int = 3 * GIB, state: str = "ready") -> GpuState:
    """The GPU with a daemon for that slot, or for itself."""
    mode = ComputeMode.EXCLUSIVE if slot is None else gpu.compute_mode
    device = WholeGpu(gpu.uuid) if slot is None else Slice(gpu.uuid, slot.profile, slot.placement)
    daemon = MpsDaemon(slot, device_uuid(device, gpu), DaemonState(state), limit)
    return replace(gpu, daemons=(daemon,), compute_mode=mode)


def steps_for(gpu: GpuState, *grants: Grant, steps: tuple[Step, ...] = ()) -> tuple[Step, ...]:
    return with_daemons(Plan("p", steps), grants, NodeView(NodeState((gpu,)))).steps


def test_the_first_part_of_a_device_has_its_daemon_started() -> None:
    assert steps_for(T4, part(WholeGpu(T4.uuid))) == (StartMps(T4.uuid, None, 3 * GIB),)
    assert steps_for(CUT, part(SLICE)) == (StartMps(CUT.uuid, THERE, 3 * GIB),)


def test_a_daemon_that_serves_needs_nothing_more() -> None:
    assert steps_for(served(T4), part(WholeGpu(T4.uuid))) == ()
    assert steps_for(served(CUT, SLICE.slot), part(SLICE, 2 * GIB)) == ()


def test_a_larger_part_raises_the_limit() -> None:
    assert steps_for(served(T4), part(WholeGpu(T4.uuid), 4 * GIB)) == (StartMps(T4.uuid, None, 4 * GIB),)


def test_a_gpu_whose_compute_mode_was_changed_is_closed_again() -> None:
    open_again = replace(served(T4), compute_mode=ComputeMode.DEFAULT)
    assert steps_for(open_again, part(WholeGpu(T4.uuid))) == (StartMps(T4.uuid, None, 3 * GIB),)


@pytest.mark.parametrize(
    ("gpu", "grant"),
    [
        (served(T4), WholeGpu(T4.uuid)),
        (served(T4), part(WholeGpu(T4.uuid), sharing=Sharing.TIME_SLICING)),
        (served(T4, state="lost"), WholeGpu(T4.uuid)),
        (served(CUT, SLICE.slot), SLICE),
    ],
)
def test_a_daemon_goes_before_its_device_is_used_otherwise(gpu: GpuState, grant: Grant) -> None:
    assert steps_for(gpu, grant) == (StopMps(gpu.uuid, None if grant.slot is None else THERE),)


def test_a_daemon_goes_before_its_instance_and_stays_beside_others() -> None:
    gpu = served(CUT, SLICE.slot)
    destroy = DestroyInstance(gpu.uuid, PROFILE.name, SPOT)
    assert steps_for(gpu, steps=(destroy,)) == (StopMps(gpu.uuid, THERE), destroy)
    elsewhere = DestroyInstance(gpu.uuid, PROFILE.name, Placement(4, PROFILE.size))
    assert steps_for(gpu, steps=(elsewhere,)) == (elsewhere,)


def test_a_daemon_goes_before_its_gpu_is_reset_and_is_not_ended_twice() -> None:
    gpu = served(T4)
    stop, reset = StopMps(gpu.uuid, None), ResetGpu(gpu.uuid)
    assert steps_for(gpu, steps=(reset,)) == (stop, reset)
    assert steps_for(gpu, steps=(stop, reset)) == (stop, reset)


def test_a_plan_that_concerns_no_daemon_is_the_same_plan() -> None:
    plan = Plan("p", (ResetGpu(CUT.uuid),))
    assert with_daemons(plan, (), NodeView(NodeState((CUT, served(T4))))) is plan


@pytest.mark.parametrize(
    ("state", "expected"), [("ready", ""), ("starting", ""), ("fault", "admits no clients"), ("lost", "died")]
)
def test_a_device_whose_daemon_is_wrong_lets_nobody_more_in(state: str, expected: str) -> None:
    why = unavailable(served(T4, state=state), None)
    assert bool(why) is bool(expected)
    assert expected in why
    assert unavailable(T4, None) == ""
