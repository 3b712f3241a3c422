"""When a share is idle: only if every look of a whole period was there, and saw no work on the share's own devices."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import gpu_on, instance_of, uncuttable_gpu
from tranche.core.allocation import ComputeSlice, FractionalShare, Grant, Slice, WholeGpu
from tranche.core.board import catalogue
from tranche.core.grid import Placement
from tranche.core.idle import LONGEST_GAP_SECONDS, LOOK_SECONDS, IdlePeriod, extended, shows_no_work
from tranche.core.profile import parse_profile
from tranche.core.sharing import Sharing
from tranche.core.state import GpuProcess, GpuState

PROCESS = (GpuProcess(7, "python"),)
OTHER = (GpuProcess(8, "of another"),)
T4 = uncuttable_gpu()
WHOLE = WholeGpu(T4.uuid)
PART = FractionalShare(WHOLE, 2**30, Sharing.MPS)


def cut(*processes: GpuProcess, elsewhere: tuple[GpuProcess, ...] = ()) -> tuple[Slice, GpuState]:
    """A slice with these processes, and its GPU; another slice has the others."""
    board = next(each for each in catalogue() if each.key == "A100-40GB")
    profile = board.profile(parse_profile("1g.5gb"))
    assert profile is not None
    here, there = Placement(0, 1), Placement(1, 1)
    instances = (
        instance_of(profile, here, processes=processes),
        instance_of(profile, there, processes=elsewhere),
    )
    gpu = gpu_on(board, instances=instances)
    return Slice(gpu.uuid, profile.name, here), gpu


def look(grant: Grant, gpu: GpuState, utilization: float | None = None, *, sees_all: bool = True) -> bool:
    return shows_no_work(grant, gpu, utilization, lambda pid: pid == OTHER[0].pid, sees_all=sees_all)


@pytest.mark.parametrize(
    ("gpu", "utilization", "unused"),
    [
        (T4, 0.0, True),
        (replace(T4, processes=PROCESS), 0.0, True),
        (replace(T4, processes=PROCESS), 0.049, True),
        (replace(T4, processes=PROCESS), 0.05, False),
        (T4, 1.0, False),
        (T4, None, True),
        (replace(T4, processes=PROCESS), None, False),
        (replace(T4, processes_known=False), 0.0, True),
        (replace(T4, processes_known=False), None, False),
        (replace(T4, lost=True), 0.0, False),
    ],
)
def test_a_whole_gpu_is_judged_by_its_gauge_or_else_by_its_processes(
    gpu: GpuState, utilization: float | None, unused: bool
) -> None:
    assert look(WHOLE, gpu, utilization) is unused


def test_processes_that_may_be_hidden_leave_only_the_gauge() -> None:
    assert look(WHOLE, T4, 0.0, sees_all=False)
    assert not look(WHOLE, T4, None, sees_all=False)
    assert not look(PART, T4, sees_all=False)


@pytest.mark.parametrize(
    ("processes", "unused"), [((), True), (OTHER, True), (PROCESS, False), ((*OTHER, *PROCESS), False)]
)
def test_on_a_shared_device_only_processes_of_others_do_not_count(
    processes: tuple[GpuProcess, ...], unused: bool
) -> None:
    assert look(PART, replace(T4, processes=processes), 1.0) is unused
    assert not look(PART, replace(T4, processes=processes, processes_known=False), 0.0)


def test_any_process_in_a_slice_is_work_and_none_elsewhere() -> None:
    empty, gpu = cut(elsewhere=PROCESS)
    assert look(empty, gpu)
    assert not look(*cut(*PROCESS))
    assert not look(*cut(*PROCESS), utilization=0.0)
    assert not look(*cut(*OTHER))
    for unknown in ({"lost": True}, {"processes_known": False}, {"instances": ()}, {"processes": PROCESS}):
        assert not look(empty, replace(gpu, **unknown)), unknown
    assert not look(WholeGpu(gpu.uuid), gpu, 0.0), "a cut GPU is no whole one"


def test_a_compute_slice_is_not_used_by_its_neighbour() -> None:
    slice_, gpu = cut()
    (first, *_) = gpu.instances
    (device,) = first.compute_instances
    pair = tuple(device._replace(start=start, processes=PROCESS if start else ()) for start in (0, 1))
    gpu = replace(gpu, instances=(first._replace(compute_instances=pair),))
    assert [look(ComputeSlice(slice_, device.name, start, 1), gpu) for start in (0, 1, 2)] == [True, False, False]


STEPS = st.lists(st.tuples(st.floats(0.0, 3 * LOOK_SECONDS), st.sampled_from([True, True, True, True, False])))


@given(STEPS)
def test_a_period_has_only_looks_that_saw_no_work_and_none_is_missing(steps: list[tuple[float, bool]]) -> None:
    now, period, looks = 1000.0, None, list[tuple[float, bool]]()
    for pause, unused in steps:
        now += pause
        looks.append((now, unused))
        period = extended(period, now, unused=unused)
        assert (period is not None) is unused
        if period is not None:
            assert period[1] == now
            inside = [each for each in looks if period[0] <= each[0] <= now]
            assert all(fine for at, fine in inside if at > period[0])
            times = [at for at, _ in inside]
            assert all(b - a <= LONGEST_GAP_SECONDS for a, b in pairwise(times))


@pytest.mark.parametrize(
    ("now", "after"),
    [
        (160.0, (0.0, 160.0)),
        (100.0 + LONGEST_GAP_SECONDS, (0.0, 100.0 + LONGEST_GAP_SECONDS)),
        (100.1 + LONGEST_GAP_SECONDS, (100.1 + LONGEST_GAP_SECONDS,) * 2),
        (99.0, (99.0, 99.0)),
    ],
)
def test_a_period_begins_again_after_a_gap_and_on_another_clock(now: float, after: IdlePeriod) -> None:
    assert extended((0.0, 100.0), now, unused=True) == after
