"""Claims on a simulated machine: what was chosen is made true, once, by whoever is left, and given back without a trace."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

from tests.node.machines import Node, change, create, cuts_of, enable, node_of
from tests.node.processes import in_child, isolated, kill_at_every_boundary, killed_at_boundary
from tests.node.test_mps_daemons import daemon_of, nothing_left, only, short, t4
from tranche.core.allocation import Allocation, FractionalShare, Phase, Slice, WholeGpu
from tranche.core.errors import GpuBusy, TrancheError
from tranche.core.events import ShareGranted
from tranche.core.grid import Placement
from tranche.core.keeper import ClaimKeeper
from tranche.core.layout import Layout, LayoutSpec
from tranche.core.profile import parse_profile
from tranche.core.request import GpuMemory, MigSlice, Request, WholeGpus
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState, GpuState
from tranche.node.change import Change
from tranche.node.claims import ClaimRegister, ClaimRequest, ReservedClaim
from tranche.node.execution.hook_runner import HookRunner
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.planning.decide.realise import ChosenDevice
from tranche.planning.layouts.reconfigure import plan_layout
from tranche_simulator.machine import SimulatedMachine

__all__ = ["short", "t4"]  # fixtures
GIB = 1 << 30


@pytest.fixture
def a100s(tmp_path: Path) -> Node:
    return node_of(tmp_path, "A100-40GB", "A100-40GB")


def slice_of(gpu: GpuState, name: str, start: int) -> Slice:
    profile = gpu.profile(parse_profile(name))
    assert profile is not None
    return Slice(gpu.uuid, profile.name, Placement(start, profile.size))


def order(name: str, *grants: ChosenDevice) -> ClaimRequest:
    slot = grants[0].slot
    request = Request(WholeGpus(1) if slot is None else MigSlice(slot.profile))
    if isinstance(grants[0], FractionalShare):
        request = Request(GpuMemory(grants[0].memory))
    return ClaimRequest(ClaimKeeper("team", name, f"uid-{name}"), request, grants)


def prepare(host: Host, *orders: ClaimRequest) -> list[Allocation | TrancheError]:
    """Every order prepared, as soon as it can be."""
    found: dict[str, Allocation | TrancheError] = {}
    left = list(orders)
    while left:
        answers = ClaimRegister(host).promise(left)
        for each, answer in zip(left, answers, strict=True):
            if isinstance(answer, ReservedClaim):
                found[each.keeper.uid] = ClaimRegister(host).fulfil(answer)
            elif answer is not None:
                found[each.keeper.uid] = answer
        left = [each for each, answer in zip(left, answers, strict=True) if answer is None]
    return [found[each.keeper.uid] for each in orders]


def prepared(host: Host, one: ClaimRequest) -> Allocation:
    (found,) = prepare(host, one)
    assert isinstance(found, Allocation), found
    return found


@isolated
def test_a_backlog_is_decided_at_once_and_carried_out_in_order(a100s: Node) -> None:
    with a100s.host() as host:
        first, second = host.view().node.gpus
        orders = [order(f"a{n}", slice_of(first, "1g.5gb", n)) for n in range(7)]
        orders += [order("whole", WholeGpu(second.uuid))]
        answers = ClaimRegister(host).promise(orders)
        assert [answer is None for answer in answers] == [False, *[True] * 6, False], "the mode is changed first"
        for answer in answers:
            if isinstance(answer, ReservedClaim):
                ClaimRegister(host).fulfil(answer)
        found = prepare(host, *orders)
        assert all(isinstance(each, Allocation) and each.phase is Phase.ACTIVE for each in found)
        assert len(host.view().node.gpus[0].instances) == 7
        assert len(host.view().allocations) == 8
        again = prepare(host, *orders)
        assert again == found, "the same claims again change nothing"
        granted = [each for each in host.events() if isinstance(each.data, ShareGranted)]
        assert len(granted) == 8
        assert "claim team/a0" in granted[0].message


@isolated
def test_what_a_claim_gives_back_stays_idle_and_is_used_again_or_makes_room(a100s: Node) -> None:
    with a100s.host() as host:
        gpu = host.view().node.gpus[0]
        small = slice_of(gpu, "1g.5gb", 0)
        prepared(host, order("a", small))
        changes = a100s.machine.total_change_calls()
        assert ClaimRegister(host).give_back("uid-a", why="its pod has ended")
        assert not ClaimRegister(host).give_back("uid-a", why="its pod has ended"), "twice is once"
        assert not host.view().allocations
        prepared(host, order("b", small))
        assert a100s.machine.total_change_calls() == changes, "the idle instance is used again"
        (refused,) = prepare(host, order("c", slice_of(gpu, "3g.20gb", 0)))
        assert isinstance(refused, GpuBusy)
        assert "claim team/b" in refused.message
        ClaimRegister(host).give_back("uid-b", why="its pod has ended")
        prepared(host, order("c", slice_of(gpu, "3g.20gb", 0)))
        assert [str(each.profile) for each in host.view().node.gpus[0].instances] == ["3g.20gb"]


@isolated
@pytest.mark.parametrize("saved", [False, True], ids=["layout", "saved-plan"])
def test_what_was_made_for_a_request_is_known_until_a_layout_wants_it(a100s: Node, saved: bool) -> None:
    with a100s.host() as host:
        gpu, other = host.view().node.gpus
        prepared(host, order("a", slice_of(gpu, "3g.20gb", 4)))
        ClaimRegister(host).give_back("uid-a", why="its pod has ended")
        change(host, *enable(other), create(other, "3g.20gb", 4))
        (ours,) = host.view().requested
        assert ours.gpu_uuid == gpu.uuid
        layout = Layout("halves", (LayoutSpec(True, ((parse_profile("3g.20gb"), 2),)),))
        apply = Change(host, HookRunner(), WaitLimit(wait=False))
        if saved:
            apply.as_saved(plan_layout(host.view(), layout).plan)
        else:
            apply.to_layout(lambda view: plan_layout(view, layout))
        assert len(host.view().owned) == 4
        assert not host.view().requested


@isolated
def test_orders_of_one_backlog_see_each_other(a100s: Node) -> None:
    with a100s.host() as host:
        gpu = host.view().node.gpus[0]
        change(host, *enable(gpu))
        change(host, create(gpu, "3g.20gb", 0))
        orders = [order("a", slice_of(gpu, "1g.5gb", 0)), order("b", slice_of(gpu, "1g.5gb", 1))]
        orders += [order("c", slice_of(gpu, "2g.10gb", 0))]
        answers = ClaimRegister(host).promise(orders)
        assert [answer is None for answer in answers] == [False, True, True], "an idle instance goes first"
        assert isinstance(answers[0], ReservedClaim)
        ClaimRegister(host).fulfil(answers[0])
        first, second, third = prepare(host, *orders)
        assert isinstance(first, Allocation)
        assert isinstance(second, Allocation)
        assert isinstance(third, GpuBusy)
        assert "claim team/a" in third.message
        assert len(host.view().node.gpus[0].instances) == 2


@isolated
def test_a_failure_is_undone_and_leaves_the_others(a100s: Node) -> None:
    with a100s.host() as host:
        gpu = host.view().node.gpus[0]
        change(host, *enable(gpu))
        answers = ClaimRegister(host).promise(
            [order("a", slice_of(gpu, "1g.5gb", 0)), order("b", slice_of(gpu, "1g.5gb", 1))]
        )
        a100s.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", 1)
        first, second = (each for each in answers if isinstance(each, ReservedClaim))
        with pytest.raises(TrancheError):
            ClaimRegister(host).fulfil(first)
        ClaimRegister(host).fulfil(second)
        (left,) = host.view().allocations
        assert isinstance(left.keeper, ClaimKeeper)
        assert left.keeper.name == "b"


@isolated
def test_what_is_gone_is_made_again_unless_the_rest_is_in_use(a100s: Node) -> None:
    with a100s.host() as host:
        gpu = host.view().node.gpus[0]
        both = order("a", slice_of(gpu, "1g.5gb", 0), slice_of(gpu, "1g.5gb", 1))
        held = prepared(host, both)
    _lose_instances(a100s)
    with a100s.host() as host:
        assert prepared(host, both).id == held.id
        assert len(host.view().node.gpus[0].instances) == 2


def _lose_instances(node: Node) -> None:
    """As after a restart of the machine."""

    def lose() -> None:
        with node.driver() as driver:
            for gpu in driver.observe():
                for instance in gpu.instances:
                    for piece in instance.compute_instances:
                        driver.destroy_compute_instance(gpu.uuid, instance.id, piece.id)
                    driver.destroy_gpu_instance(gpu.uuid, instance.id)

    in_child(lose)


@isolated
def test_a_claim_that_was_given_something_else_is_believed_once_nothing_runs_there(a100s: Node) -> None:
    with a100s.host() as host:
        gpu = host.view().node.gpus[0]
        prepared(host, order("a", slice_of(gpu, "1g.5gb", 0)))
        (instance,) = host.view().node.gpus[0].instances
        assert instance.whole_slice is not None
        other = order("a", slice_of(gpu, "1g.5gb", 3))
        with SimulatedMachine(a100s.machine.directory).attached(instance.whole_slice.uuid):
            (refused,) = prepare(host, other)
        assert isinstance(refused, GpuBusy)
        assert str(os.getpid()) in refused.message
        prepared(host, other)
        (only_one,) = host.view().allocations
        assert only_one.grants == other.grants


def part(host: Host, memory: int) -> FractionalShare:
    return FractionalShare(WholeGpu(only(host).uuid), memory, Sharing.MPS)


@isolated
def test_the_limits_of_a_part_are_in_force_when_it_is_prepared(t4: Node) -> None:
    with t4.host() as host:
        prepared(host, order("a", part(host, 3 * GIB)))
        prepared(host, order("b", part(host, 5 * GIB)))
        assert (daemon_of(host).state, daemon_of(host).limit) == (DaemonState.READY, 5 * GIB)
        (refused,) = prepare(host, order("c", part(host, 8 * GIB)))
        assert isinstance(refused, TrancheError)
        assert "but the request needs" in refused.message
        for uid in ("uid-a", "uid-b"):
            ClaimRegister(host).give_back(uid, why="ended")
        host.view()
        nothing_left(t4, host)


def test_whoever_is_killed_in_a_preparation_leaves_all_or_nothing(a100s: Node) -> None:
    def orders(host: Host) -> list[ClaimRequest]:
        first, second = host.view().node.gpus
        return [order("a", slice_of(first, "2g.10gb", 0)), order("b", slice_of(second, "3g.20gb", 4))]

    def look(host: Host, killed: bool) -> None:
        for each in host.view().allocations:
            for grant in each.grants:
                assert grant.slot is not None
                assert host.observe_gpu(grant.gpu_uuid).instance_at(grant.slot.placement) is not None
        done = prepare(host, *orders(host))
        assert all(isinstance(each, Allocation) for each in done), done
        cut = cuts_of(host.observe())
        assert [len(each.slots) for each in cut.values()] == [1, 1]
        for uid in ("uid-a", "uid-b"):
            ClaimRegister(host).give_back(uid, why="ended")
        gpus = host.view().node.gpus
        assert not host.view().allocations
        # From nothing once more: a whole GPU takes all that is idle out of the way.
        for number, gpu in enumerate(gpus):
            prepared(host, order(f"whole-{number}", WholeGpu(gpu.uuid)))
            ClaimRegister(host).give_back(f"uid-whole-{number}", why="ended")
        assert not any(gpu.mig_enabled for gpu in host.observe())

    kill_at_every_boundary(a100s, lambda host: prepare(host, *orders(host)), look, boundaries=9)


def test_whoever_is_killed_while_a_claim_is_given_back_leaves_it_or_not(t4: Node) -> None:
    for boundary in count():

        def work(host: Host) -> None:
            ClaimRegister(host).give_back("uid-a", why="ended")

        def first() -> None:
            with t4.host() as host:
                prepared(host, order("a", part(host, 3 * GIB)))

        in_child(first)
        killed = killed_at_boundary(t4, boundary, work)

        def after() -> None:
            with t4.host() as host:
                ClaimRegister(host).give_back("uid-a", why="ended")
                assert not host.view().allocations
                nothing_left(t4, host)

        in_child(after)
        if not killed:
            assert boundary >= 1
            return
