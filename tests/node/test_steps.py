"""What each step does, how its effect is seen, and what must not be taken from whom."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.node.machines import Node, WatchedDriver, change, create, cut_of, cuts_of, destroy, disable, enable, node_of
from tests.node.processes import isolated
from tests.strategies import FAMILY_BOARDS, gpu_on, instance_of, placed
from tranche.core.allocation import Allocation, Grant, Phase, Slice, WholeGpu
from tranche.core.board import Board
from tranche.core.errors import GpuBusy, GpuNotFound, ModeChangePending, VerificationFailed
from tranche.core.grid import Placement
from tranche.core.keeper import ProcessKeeper
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.request import MigSlice, Request, WholeGpus
from tranche.core.state import GpuState, MigMode
from tranche.node.host import Host
from tranche.node.state.session import process_start_time
from tranche.node.store import register
from tranche.planning.steps import CreateInstance, DestroyInstance, ResetGpu, SetMigMode

AMPERE = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")
HOPPER = next(board for board in FAMILY_BOARDS if board.key == "H100-80GB-SXM")
ON, OFF = MigMode.ENABLED, MigMode.DISABLED
IN_USE = 19


@pytest.mark.parametrize(
    ("board", "current", "pending", "enabled", "expected"),
    [
        (AMPERE, OFF, OFF, True, False),
        (AMPERE, OFF, ON, True, True),
        (AMPERE, ON, ON, True, True),
        (AMPERE, ON, OFF, True, False),
        (HOPPER, OFF, OFF, True, False),
        (HOPPER, OFF, ON, True, False),
        (HOPPER, ON, ON, True, True),
        (HOPPER, ON, ON, False, False),
        (HOPPER, OFF, OFF, False, True),
    ],
)
def test_a_mode_is_in_effect_when_only_a_reset_is_missing(
    board: Board, current: MigMode, pending: MigMode, enabled: bool, expected: bool
) -> None:
    gpu = replace(gpu_on(board, mode=current), pending_mode=pending)
    assert SetMigMode(gpu.uuid, enabled).in_effect(gpu) is expected
    assert ResetGpu(gpu.uuid).in_effect(gpu) is (current is pending)


def test_an_instance_is_in_effect_by_profile_placement_and_slices() -> None:
    profile = next(each for each in placed(AMPERE) if str(each.name) == "2g.10gb")
    spot = Placement(2, profile.size)
    gpu = gpu_on(AMPERE, instances=(instance_of(profile, spot),))
    single = ProfileName(2, 10, 1)
    assert CreateInstance(gpu.uuid, profile.name, spot, (profile.name,)).in_effect(gpu)
    assert not CreateInstance(gpu.uuid, profile.name, spot, (single, single)).in_effect(gpu)
    assert not CreateInstance(gpu.uuid, profile.name, Placement(0, 2), (profile.name,)).in_effect(gpu)
    assert not CreateInstance(gpu.uuid, parse_profile("1g.10gb"), spot, (parse_profile("1g.10gb"),)).in_effect(gpu)
    assert not DestroyInstance(gpu.uuid, profile.name, spot).in_effect(gpu)
    assert DestroyInstance(gpu.uuid, profile.name, Placement(0, 2)).in_effect(gpu)
    assert DestroyInstance(gpu.uuid, parse_profile("1g.10gb"), spot).in_effect(gpu)


def only(host: Host) -> GpuState:
    return host.view().node.gpus[0]


@isolated
def test_an_instance_is_cut_inside_as_declared(a100: Node) -> None:
    with a100.host() as host:
        change(host, *enable(only(host)))
        change(host, create(only(host), "3g.20gb", 0, "1c.3g.20gb", "2c.3g.20gb"))
        (instance,) = only(host).instances
        assert sorted(map(str, instance.slices)) == ["1c.3g.20gb", "2c.3g.20gb"]


@isolated
def test_an_idle_instance_that_lacks_slices_gets_only_those(a100: Node) -> None:
    with a100.host() as host:
        change(host, *enable(only(host)))
        gpu = only(host)
        number = host.driver.create_gpu_instance(gpu.uuid, parse_profile("2g.10gb"), Placement(0, 2))
        host.driver.create_compute_instance(gpu.uuid, number, parse_profile("1c.2g.10gb"))
        before = a100.machine.change_calls()["nvmlDeviceCreateGpuInstanceWithPlacement"]
        change(host, create(gpu, "2g.10gb", 0, "1c.2g.10gb", "1c.2g.10gb"))
        (instance,) = only(host).instances
        assert instance.id == number
        assert list(map(str, instance.slices)) == ["1c.2g.10gb", "1c.2g.10gb"]
        assert a100.machine.change_calls()["nvmlDeviceCreateGpuInstanceWithPlacement"] == before
        assert host.view().owned == frozenset(), "what somebody else made stays theirs"


@isolated
def test_an_instance_that_is_in_use_for_a_moment_after_its_slices_is_tried_again(a100: Node) -> None:
    naps: list[float] = []
    with a100.host(sleep=naps.append) as host:
        change(host, *enable(only(host)))
        change(host, create(only(host), "1g.5gb", 0))
        a100.machine.inject_error("nvmlGpuInstanceDestroy", IN_USE, calls=3)
        change(host, destroy(only(host), "1g.5gb", 0))
        assert only(host).instances == ()
        assert len(naps) == 3
        assert all(0 < nap < 1 for nap in naps)


@isolated
def test_an_instance_that_stays_in_use_is_given_up_and_made_whole_again(a100: Node) -> None:
    naps: list[float] = []
    with a100.host(sleep=naps.append) as host:
        change(host, *enable(only(host)))
        change(host, create(only(host), "1g.5gb", 0))
        before = cuts_of(host.view().node)
        a100.machine.inject_error("nvmlGpuInstanceDestroy", IN_USE, calls=1_000)
        with pytest.raises(GpuBusy):
            change(host, destroy(only(host), "1g.5gb", 0))
        assert 2 < len(naps) < 100
        assert cuts_of(host.view().node) == before


@isolated
def test_a_mode_that_stays_pending_is_an_error_of_its_own_and_taken_back(tmp_path: Path) -> None:
    for board in ("A100-40GB", "H100-80GB-SXM"):
        folder = tmp_path / board
        folder.mkdir()
        node = node_of(folder, board)
        with node.host() as host:
            before = cuts_of(host.view().node)
            node.machine.inject_stuck_mode(0)
            with pytest.raises(ModeChangePending, match="is still pending") as caught:
                change(host, *enable(only(host)), create(only(host), "1g.5gb" if board[0] == "A" else "1g.10gb", 0))
            assert caught.value.hint
            assert cuts_of(host.view().node) == before
            node.machine.inject_stuck_mode(0, stuck=False)
            change(host, *enable(only(host)))
            assert only(host).mig_enabled


class Forgetful(WatchedDriver):
    """A driver that says yes and does nothing."""

    def create_compute_instance(self, gpu_uuid: str, gpu_instance_id: int, name: ProfileName) -> int:
        return 0


@isolated
def test_a_step_that_shows_no_effect_is_an_error_and_undone(a100: Node) -> None:
    with a100.host() as host:
        change(host, *enable(only(host)))
    with a100.driver():
        driver = Forgetful(a100.watch)
        host = Host(driver, a100.state_dir)
        before = cut_of(only(host))
        with pytest.raises(VerificationFailed, match="does not show it"):
            change(host, create(only(host), "1g.5gb", 0))
        assert cut_of(only(host)) == before
        host.close()
        driver.close()


# What must not be taken


def give(host: Host, *grants: Grant) -> str:
    """An allocation whose process lives: this one, which is its holder by pid."""
    request = Request(WholeGpus(1)) if grants[0].slot is None else Request(MigSlice(grants[0].slot.profile))
    allocation = Allocation("held", request, grants, Phase.ACTIVE, 1.0, "train.py")
    with host.ledger.write() as db:
        register.add_allocation(db, allocation)
        register.activate_allocation(db, "held")
    with host.ledger.write() as db:
        register.set_keeper(db, "held", ProcessKeeper(os.getpid(), process_start_time(os.getpid())))
    return "held"


def refused(node: Node, host: Host, act: Callable[[], None], *said: str) -> None:
    """The act is refused, the message names what it must, and the driver was not even asked to change anything."""
    before = cuts_of(host.view().node)
    calls = node.machine.total_change_calls()
    with pytest.raises(GpuBusy) as caught:
        act()
    for word in said:
        assert word in caught.value.message
    assert node.machine.total_change_calls() == calls
    assert cuts_of(host.view().node) == before


def cut_once(host: Host) -> GpuState:
    change(host, *enable(only(host)))
    change(host, create(only(host), "1g.5gb", 0))
    return only(host)


@isolated
def test_an_instance_with_a_process_is_not_destroyed(a100: Node) -> None:
    with a100.host() as host:
        gpu = cut_once(host)
        a100.machine.inject_busy(gpu.instances[0].compute_instances[0].uuid, pid=5004711, name="train")
        refused(a100, host, lambda: change(host, destroy(gpu, "1g.5gb", 0)), "GPU 0", "1g.5gb", "train (pid 5004711)")


@isolated
def test_an_instance_with_an_allocation_is_not_destroyed(a100: Node) -> None:
    with a100.host() as host:
        gpu = cut_once(host)
        name = give(host, Slice(gpu.uuid, gpu.instances[0].profile, gpu.instances[0].placement))
        refused(a100, host, lambda: change(host, destroy(gpu, "1g.5gb", 0)), "GPU 0", f"allocation {name}")


@isolated
def test_nothing_is_created_in_the_room_of_an_allocation(a100: Node) -> None:
    with a100.host() as host:
        gpu = cut_once(host)
        name = give(host, Slice(gpu.uuid, parse_profile("2g.10gb"), Placement(2, 2)))
        refused(a100, host, lambda: change(host, create(gpu, "1g.5gb", 3)), "GPU 0", f"allocation {name}")
        change(host, create(gpu, "1g.5gb", 1))


@isolated
def test_a_gpu_with_a_process_is_neither_switched_nor_reset(a100: Node) -> None:
    with a100.host() as host:
        gpu = only(host)
        a100.machine.inject_busy(gpu.uuid, pid=5004711, name="train")
        refused(a100, host, lambda: change(host, *enable(gpu)), "GPU 0", "train (pid 5004711)")
        a100.machine.clear_injections()
        change(host, SetMigMode(gpu.uuid, True))
        a100.machine.inject_busy(gpu.uuid, pid=5004711, name="train")
        refused(a100, host, lambda: change(host, ResetGpu(gpu.uuid)), "GPU 0", "train (pid 5004711)")


@isolated
def test_a_gpu_with_an_allocation_is_not_switched(a100: Node) -> None:
    with a100.host() as host:
        name = give(host, WholeGpu(only(host).uuid))
        refused(a100, host, lambda: change(host, *enable(only(host))), "GPU 0", f"allocation {name}")


@isolated
def test_a_gpu_with_instances_is_not_switched(a100: Node) -> None:
    with a100.host() as host:
        gpu = cut_once(host)
        refused(a100, host, lambda: change(host, *disable(gpu)), "GPU 0", "1g.5gb")


@isolated
def test_a_plan_for_a_gpu_that_is_not_there_is_refused(a100: Node) -> None:
    with a100.host() as host, pytest.raises(GpuNotFound, match="GPU-nowhere"):
        change(host, ResetGpu("GPU-nowhere"))
