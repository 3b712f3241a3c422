"""A request whose plan fails on one GPU gets its share on another one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.node.machines import Node, change, enable, node_of
from tests.node.processes import isolated
from tests.strategies import FAMILY_BOARDS, gpu_on, view_of
from tranche.core.allocation import NodeView
from tranche.core.errors import GpuBusy, HardwareError, LedgerUnavailable, PermissionDenied, TrancheError
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request, WholeGpus
from tranche.local.queue import FailedGpus, Queue
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.planning.decide.allocate import Waiting
from tranche.planning.decide.obstacle import Reason

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
NO_PERMISSION, IN_USE, UNKNOWN = 4, 19, 999
SLICE = Request(MigSlice(parse_profile("1g.10gb")))


@pytest.fixture
def two(tmp_path: Path) -> Node:
    """Two H100 80 GB, MIG mode off."""
    return node_of(tmp_path, "H100-80GB-SXM", "H100-80GB-SXM")


def acquire(host: Host, request: Request = SLICE, **options: object) -> HeldAllocation:
    settings: dict[str, object] = {"patience": WaitLimit(wait=False), **options}
    return Queue(host).acquire(request, command="work", pid=os.getpid(), **settings)  # type: ignore[arg-type]


def tries(host: Host) -> int:
    return [event.name for event in host.events()].count("Undone")


def gpu_of(held: HeldAllocation) -> str:
    return held.allocation.grants[0].gpu_uuid


@isolated
def test_a_driver_error_on_one_gpu_is_tried_on_another(two: Node) -> None:
    with two.host(sleep=lambda seconds: None) as host:
        first, second = host.view().node.gpus
        two.machine.inject_error(CREATE, UNKNOWN, calls=1_000, gpu=0)
        held = acquire(host)
        assert gpu_of(held) == second.uuid
        assert tries(host) == 1
        after = host.view().node.gpu(first.uuid)
        assert (after.mode, after.instances) == (first.mode, ()), "what was begun on the first GPU is undone"


@isolated
def test_a_gpu_that_is_not_reset_is_passed_over(tmp_path: Path) -> None:
    node = node_of(tmp_path, "A100-40GB", "A100-40GB")
    with node.host() as host:
        node.machine.inject_error("trancheSimResetGpu", UNKNOWN, calls=1_000, gpu=0)
        held = acquire(host, Request(MigSlice(parse_profile("1g.5gb"))))
        assert gpu_of(held) == host.view().node.gpus[1].uuid


@isolated
def test_a_gpu_that_stays_in_use_is_passed_over_after_the_third_look(two: Node) -> None:
    with two.host(sleep=lambda seconds: None) as host:
        for gpu in host.view().node:
            change(host, *enable(gpu))
        two.machine.inject_error(CREATE, IN_USE, calls=1_000, gpu=0)
        held = acquire(host)
        assert gpu_of(held) == host.view().node.gpus[1].uuid
        assert tries(host) == 3


@isolated
def test_when_no_gpu_is_left_the_errors_of_all_are_told_and_nothing_is_left_over(two: Node) -> None:
    with two.host(sleep=lambda seconds: None) as host:
        two.machine.inject_error(CREATE, UNKNOWN, calls=1_000)
        with pytest.raises(HardwareError, match=r"GPU 0: cannot create .*; GPU 1: cannot create .*"):
            acquire(host, patience=WaitLimit())
        assert tries(host) == 2
        view = host.view()
        assert (view.allocations, host.waiters(), view.owned) == ((), (), frozenset())


@isolated
def test_two_gpus_at_once_are_not_had_when_one_of_two_fails(tmp_path: Path) -> None:
    node = node_of(tmp_path, "A100-40GB", "A100-40GB")
    with node.host() as host:
        for gpu in host.view().node:
            change(host, *enable(gpu))
        node.machine.inject_error("nvmlDeviceSetMigMode", UNKNOWN, calls=1_000, gpu=1)
        with pytest.raises(HardwareError, match="disable MIG mode"):
            acquire(host, Request(WholeGpus(2)), patience=WaitLimit())
        assert tries(host) == 1


@isolated
def test_who_will_not_wait_is_told_of_the_failure_and_of_those_in_the_way(two: Node) -> None:
    with two.host(sleep=lambda seconds: None) as host:
        two.machine.inject_error(CREATE, UNKNOWN, calls=1_000, gpu=0)
        other = acquire(host, Request(MigSlice(parse_profile("7g.80gb"))))
        with pytest.raises(HardwareError, match=r"GPU 0: cannot create .*; GPU 1: ") as caught:
            acquire(host)
        assert "GPU 1" in caught.value.message
        assert gpu_of(other) == host.view().node.gpus[1].uuid


@isolated
def test_who_waits_is_told_of_the_failure_and_gets_the_other_gpu_when_it_is_free(two: Node) -> None:
    told: list[Waiting] = []
    with two.host(sleep=lambda seconds: None) as host, two.host() as neighbour:
        two.machine.inject_error(CREATE, UNKNOWN, calls=1_000, gpu=0)
        other = acquire(neighbour, Request(MigSlice(parse_profile("7g.80gb"))))

        def note(outcome: Waiting, ahead: int, reasons: str) -> None:
            if not told:
                Queue(neighbour).release(other.allocation.id, why="ended")
                other.lock.release()
            told.append(outcome)

        held = acquire(host, patience=WaitLimit(), waiting=note)
        assert gpu_of(held) == host.view().node.gpus[1].uuid
        assert told[0].obstacles[0].reason is Reason.DRIVER_ERROR


@isolated
def test_what_concerns_all_gpus_is_tried_on_one_only(two: Node) -> None:
    with two.host(sleep=lambda seconds: None) as host:
        two.machine.inject_error(CREATE, NO_PERMISSION, calls=1_000)
        with pytest.raises(PermissionDenied):
            acquire(host, patience=WaitLimit())
        assert tries(host) == 1


# How long a GPU is left out


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def failed_on(gpu_uuid: str, error: TrancheError) -> TrancheError:
    error.gpu_uuid = gpu_uuid
    return error


def left(failed: FailedGpus, view: NodeView) -> list[int]:
    return [gpu.index for gpu in failed.left_out_of(view).node]


def test_a_gpu_is_tried_again_after_a_pause_that_grows_to_an_hour() -> None:
    clock = Clock()
    failed = FailedGpus(clock)
    view = view_of(gpu_on(FAMILY_BOARDS[0]), gpu_on(FAMILY_BOARDS[0], 1))
    pauses = []
    for _ in range(8):
        assert left(failed, view) == [0, 1]
        assert failed.error(SLICE) is None
        assert failed.note(failed_on(view.node.gpus[0].uuid, HardwareError("no")))
        began = clock.now
        while left(failed, view) == [1]:
            clock.now += 1.0
        pauses.append(clock.now - began)
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_what_is_not_a_gpus_own_failure_is_not_tried_again() -> None:
    failed = FailedGpus(Clock())
    view = view_of(gpu_on(FAMILY_BOARDS[0]))
    failed.left_out_of(view)
    uuid = view.node.gpus[0].uuid
    assert not failed.note(GpuBusy("by nobody's GPU"))
    assert not failed.note(failed_on("GPU-unseen", HardwareError("no")))
    assert not failed.note(failed_on(uuid, LedgerUnavailable("the disk is full")))
    assert left(failed, view) == [0]
