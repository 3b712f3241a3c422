"""What somebody else chose is made true by the cheapest change, or refused with what is in the way; nobody else is touched."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import (
    FAMILY_BOARDS,
    boards,
    gpu_on,
    instance_of,
    placed,
    sharing_views,
    uncuttable_gpu,
    view_of,
)
from tests.support.length import cases
from tranche.core.allocation import Allocation, FractionalShare, NodeView, Phase, Slice, WholeGpu, memory_of
from tranche.core.board import Board
from tranche.core.errors import GpuBusy, GpuNotFound, HardwareError, NoRoom, SharingUnavailable
from tranche.core.grid import Placement, placements
from tranche.core.keeper import ClaimKeeper
from tranche.core.profile import parse_profile
from tranche.core.quantity import MIB
from tranche.core.request import Request, WholeGpus
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import DaemonState, GpuInstance, GpuProcess, GpuState, MigMode, MpsDaemon
from tranche.planning.decide.obstacle import Obstacle, Reason
from tranche.planning.decide.realise import ChosenDevice, realise, realise_again, refusal
from tranche.planning.occupancy.gpu_occupancy import tenancy
from tranche.planning.steps import CreateInstance, DestroyInstance, ResetGpu, SetMigMode, StartMps, StopMps
from tranche.planning.steps.plan import Plan, apply

GIB = 1 << 30
A100 = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")
ALL_MEANS = MachineSharing(frozenset(Sharing), {}, 48)


@st.composite
def wanted_of(draw: st.DrawFn, view: NodeView) -> ChosenDevice:
    """A device of some GPU of the view, as it may be published: whole, a slice, or a part of either."""
    gpu = draw(st.sampled_from(view.node.gpus))
    slots = [(profile.name, spot) for profile in gpu.profiles for spot in placements(profile)]
    alone, in_slot, in_shared = (draw(st.booleans()) for _ in range(3))
    device: WholeGpu | Slice = WholeGpu(gpu.uuid)
    if slots and in_slot:
        device = Slice(gpu.uuid, *draw(st.sampled_from(slots)))
    held = [grant.device for grant in view.grants_on(gpu.uuid) if isinstance(grant, FractionalShare)]
    if held and in_shared:
        device = draw(st.sampled_from(held))
    if alone:
        return device
    memory = max(MIB, memory_of(device, gpu) // draw(st.integers(1, 8)) // MIB * MIB)
    return FractionalShare(device, memory, draw(st.sampled_from(Sharing)), draw(st.sampled_from([None, 20])))


def held_by(view: NodeView, *grants: ChosenDevice, name: str = "mine") -> NodeView:
    keeper = ClaimKeeper("ns", "claim", "uid")
    mine = Allocation(name, Request(WholeGpus(1)), grants, Phase.ACTIVE, 1.0, keeper=keeper)
    return replace(view, allocations=(*view.allocations, mine))


@given(st.data())
@settings(max_examples=cases(400), deadline=None)
def test_what_is_realised_is_there_and_contradicts_nothing(data: st.DataObject) -> None:
    view = data.draw(sharing_views())
    wanted = data.draw(st.lists(wanted_of(view), min_size=1, max_size=3))
    plan = realise(view, wanted, "test")
    if isinstance(plan, Obstacle):
        return
    after = apply(plan, view)
    for grant in wanted:
        gpu = after.node.gpu(grant.gpu_uuid)
        if grant.slot is None:
            assert gpu.mode is not MigMode.ENABLED
            assert not gpu.instances
        else:
            instance = gpu.instance_at(grant.slot.placement)
            assert instance is not None
            assert instance.profile == grant.slot.profile
            assert instance.whole_slice is not None
        if isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS:
            daemon = gpu.daemon_of(grant.slot)
            assert daemon is not None
            assert daemon.state is DaemonState.READY
            assert daemon.limit >= grant.memory
        elif not isinstance(grant, FractionalShare):
            assert gpu.daemon_of(grant.slot) is None
    again = realise_again(held_by(after, *wanted), held_by(after, *wanted).allocations[-1], "again")
    assert isinstance(again, Plan)
    assert again.empty


@given(st.data())
@settings(max_examples=cases(400), deadline=None)
def test_nobody_else_is_touched(data: st.DataObject) -> None:
    view = data.draw(sharing_views())
    wanted = data.draw(st.lists(wanted_of(view), min_size=1, max_size=3))
    plan = realise(view, wanted, "test")
    if isinstance(plan, Obstacle):
        return
    assert set(plan.gpu_uuids) <= {grant.gpu_uuid for grant in wanted}
    for gpu in view.node:
        before = tenancy(view, gpu)
        for step in plan.steps_on(gpu.uuid):
            assert gpu.uuid not in view.changing
            match step:
                case DestroyInstance():
                    assert step.key in view.owned
                    assert step.key not in before.promised
                    gone = gpu.instance_in(step.occupant)
                    assert gone is not None
                    assert not gone.has_processes
                case CreateInstance():
                    for slot in before.promised:
                        assert not slot.placement.overlaps(step.placement)
                case SetMigMode() | ResetGpu():
                    assert before.untouched
                    assert not before.idle_foreign
                case StopMps():
                    sharers = [part for part in view.grants_on(gpu.uuid) if part.slot == step.slot]
                    assert not any(
                        isinstance(part, FractionalShare) and part.sharing is Sharing.MPS for part in sharers
                    )
                case StartMps():
                    assert step.device in {grant.device for grant in wanted if isinstance(grant, FractionalShare)}
                case _:
                    pytest.fail(f"nobody knows what {step} takes")


@given(st.data())
@settings(max_examples=cases(200), deadline=None)
def test_on_a_gpu_that_nobody_has_every_device_is_realised(data: st.DataObject) -> None:
    board = data.draw(boards())
    profiles = placed(board)
    mode = data.draw(st.sampled_from([MigMode.ENABLED, MigMode.DISABLED]))
    instances = []
    if mode is MigMode.ENABLED and data.draw(st.booleans()):
        profile = data.draw(st.sampled_from(profiles))
        instances = [instance_of(profile, placements(profile)[0], filled=data.draw(st.booleans()))]
    gpu = gpu_on(board, mode=mode, instances=instances)
    view = view_of(gpu, owned=[gpu.key(each) for each in instances])
    view = replace(view, node=replace(view.node, sharing=ALL_MEANS))
    plan = realise(view, [data.draw(wanted_of(view))], "test")
    if isinstance(plan, Obstacle):
        assert plan.reason is Reason.NO_ROOM, "more than the mechanism leaves of a device, and nothing else"
    elif mode is MigMode.DISABLED:
        assert not any(isinstance(step, DestroyInstance) for step in plan.steps)


def one(text: str, start: int, gpu: GpuState) -> Slice:
    profile = gpu.profile(parse_profile(text))
    assert profile is not None
    return Slice(gpu.uuid, profile.name, Placement(start, profile.size))


def cut(board: Board, *slots: tuple[str, int], pid: int = 0) -> GpuState:
    """A GPU with those instances; in the first runs a process when there is a `pid`."""
    by_name = {str(profile.name): profile for profile in board.profiles}
    users = [GpuProcess(pid, "train.py")] if pid else []
    found: list[GpuInstance] = []
    for name, start in slots:
        profile = by_name[name]
        found.append(instance_of(profile, Placement(start, profile.size), processes=() if found else users))
    return gpu_on(board, instances=found)


def refused(view: NodeView, *wanted: ChosenDevice) -> Obstacle:
    found = realise(view, wanted, "test")
    assert isinstance(found, Obstacle)
    return found


def test_the_cheapest_change_is_made() -> None:
    gpu = cut(A100, ("1g.5gb", 0), ("2g.10gb", 4))
    view = view_of(gpu, owned=[gpu.key(each) for each in gpu.instances])

    def steps(wanted: ChosenDevice) -> list[str]:
        plan = realise(view, [wanted], "test")
        assert isinstance(plan, Plan)
        return [str(step) for step in plan.steps]

    assert steps(one("1g.5gb", 0, gpu)) == []
    assert steps(one("1g.5gb", 1, gpu)) == ["create 1g.5gb at 1:1"]
    assert steps(one("3g.20gb", 4, gpu)) == ["destroy 2g.10gb at 4:2", "create 3g.20gb at 4:4"]
    assert len(steps(WholeGpu(gpu.uuid))) == 4, "both instances go, then the mode, then a reset"
    empty = gpu_on(A100, mode=MigMode.DISABLED)
    plan = realise(view_of(empty), [one("1g.5gb", 0, empty), one("1g.5gb", 1, empty)], "test")
    assert isinstance(plan, Plan)
    assert [step.action for step in plan.steps] == ["SetMigMode", "ResetGpu", "CreateInstance", "CreateInstance"]


def test_an_allocation_over_a_holder_is_refused_by_the_holders_name() -> None:
    gpu = cut(A100, ("1g.5gb", 0))
    view = held_by(view_of(gpu, owned=[gpu.key(gpu.instances[0])]), one("1g.5gb", 0, gpu))
    for wanted in (one("1g.5gb", 0, gpu), one("3g.20gb", 0, gpu), WholeGpu(gpu.uuid)):
        found = refused(view, wanted)
        assert found.reason is Reason.GPU_BUSY
        assert "overlaps what claim ns/claim holds" in found.text
        assert isinstance(refusal(found), GpuBusy)
    shared = FractionalShare(WholeGpu(gpu.uuid), GIB, Sharing.TIME_SLICING)
    assert refused(replace(view, node=replace(view.node, sharing=ALL_MEANS)), shared).reason is Reason.GPU_BUSY
    both = refused(view_of(gpu), one("1g.5gb", 1, gpu), one("2g.10gb", 0, gpu))
    assert both.reason is Reason.GPU_BUSY, "two devices of one claim overlap"
    assert both.text == "1g.5gb at 1:1 and 2g.10gb at 0:2 are chosen, but cannot exist together"


def test_a_slice_beside_shares_of_the_same_gpu_is_refused() -> None:
    gpu = gpu_on(A100, mode=MigMode.DISABLED)
    view = held_by(view_of(gpu), FractionalShare(WholeGpu(gpu.uuid), GIB, Sharing.TIME_SLICING))
    found = refused(view, one("1g.5gb", 0, gpu))
    assert (found.reason, found.allocation_ids) == (Reason.GPU_BUSY, ("mine",))


def test_a_process_that_nobody_accounts_for_is_not_ended() -> None:
    gpu = cut(A100, ("1g.5gb", 0), pid=77)
    view = view_of(gpu, owned=[gpu.key(gpu.instances[0])])
    found = refused(view, one("1g.5gb", 0, gpu))
    assert found.reason is Reason.GPU_BUSY
    assert "train.py (pid 77)" in found.text
    assert refused(view, one("2g.10gb", 0, gpu)).processes == found.processes


def test_an_instance_that_tranche_did_not_make_stays() -> None:
    gpu = cut(A100, ("1g.5gb", 0))
    found = refused(view_of(gpu), one("2g.10gb", 0, gpu))
    assert found.reason is Reason.FOREIGN_INSTANCES
    assert "when an administrator has destroyed that instance" in refusal(found).hint
    assert refused(view_of(gpu), WholeGpu(gpu.uuid)).reason is Reason.FOREIGN_INSTANCES


def test_more_memory_or_compute_than_a_device_has_is_refused() -> None:
    gpu = uncuttable_gpu()
    view = replace(view_of(gpu), node=replace(view_of(gpu).node, sharing=ALL_MEANS))
    held = held_by(view, FractionalShare(WholeGpu(gpu.uuid), 10 * GIB, Sharing.TIME_SLICING, 80))
    found = refused(held, FractionalShare(WholeGpu(gpu.uuid), 5 * GIB, Sharing.TIME_SLICING))
    assert found.reason is Reason.NO_ROOM
    assert "but the request needs" in found.text
    assert isinstance(refusal(found), NoRoom)
    assert refused(held, FractionalShare(WholeGpu(gpu.uuid), GIB, Sharing.TIME_SLICING, 30)).reason is Reason.NO_ROOM
    fits = realise(held, [FractionalShare(WholeGpu(gpu.uuid), 4 * GIB, Sharing.TIME_SLICING, 20)], "test")
    assert isinstance(fits, Plan)


def test_one_holder_has_one_part_of_a_device() -> None:
    gpu = uncuttable_gpu()
    view = replace(view_of(gpu), node=replace(view_of(gpu).node, sharing=ALL_MEANS))
    for sharing in (Sharing.TIME_SLICING, Sharing.MPS):
        found = refused(view, *(FractionalShare(WholeGpu(gpu.uuid), memory, sharing) for memory in (GIB, 2 * GIB)))
        assert found.reason is Reason.SHARING_UNAVAILABLE
        assert "two parts of one device" in found.text


def test_a_mechanism_that_the_machine_lacks_and_devices_that_it_has_not_are_refused() -> None:
    gpu = gpu_on(A100)
    part = FractionalShare(WholeGpu(gpu.uuid), GIB, Sharing.MPS)
    view = view_of(gpu)
    assert isinstance(refusal(refused(view, part)), SharingUnavailable)
    able = replace(view, node=replace(view.node, sharing=ALL_MEANS))
    other = FractionalShare(one("1g.5gb", 0, gpu), GIB, Sharing.MPS)
    assert "one MPS daemon" in refused(able, other, other._replace(device=one("1g.5gb", 1, gpu))).text
    odd = Slice(gpu.uuid, parse_profile("1g.5gb"), Placement(5, 2))
    assert refused(view, odd).reason is Reason.PROFILE_NOT_SUPPORTED
    assert refused(view, Slice(gpu.uuid, parse_profile("1g.12gb"), Placement(0, 1))).reason is (
        Reason.PROFILE_NOT_SUPPORTED
    )
    with pytest.raises(GpuNotFound):
        realise(view, [WholeGpu("GPU-gone")], "test")


def test_lost_gpus_and_those_that_are_changed_are_left_alone() -> None:
    gpu = gpu_on(A100)
    lost = view_of(replace(gpu, lost=True))
    assert isinstance(refusal(refused(lost, WholeGpu(gpu.uuid))), HardwareError)
    assert refused(view_of(gpu, changing=[gpu.uuid]), WholeGpu(gpu.uuid)).reason is Reason.LAYOUT_CHANGING
    pending = replace(gpu, pending_mode=MigMode.DISABLED)
    assert refused(view_of(pending), one("1g.5gb", 0, gpu)).reason is Reason.MIG_MODE_CHANGE_PENDING


def test_what_was_given_and_has_gone_is_made_again() -> None:
    gpu = gpu_on(A100)
    wanted = one("1g.5gb", 0, gpu)
    view = held_by(view_of(gpu), wanted)
    plan = realise_again(view, view.allocations[0], "again")
    assert isinstance(plan, Plan)
    assert [str(step) for step in plan.steps] == ["create 1g.5gb at 0:1"]
    running = held_by(view_of(cut(A100, ("1g.5gb", 0), pid=5)), wanted)
    plan = realise_again(running, running.allocations[0], "again")
    assert isinstance(plan, Plan)
    assert plan.empty, "its own process is in the way of nothing"
    lost = held_by(view_of(replace(gpu, lost=True)), wanted)
    assert isinstance(realise_again(lost, lost.allocations[0], "again"), Obstacle)


def test_a_daemon_that_let_its_clients_down_lets_nobody_in() -> None:
    gpu = uncuttable_gpu()
    part = FractionalShare(WholeGpu(gpu.uuid), GIB, Sharing.MPS)
    faulty = replace(gpu, daemons=(MpsDaemon(None, gpu.uuid, DaemonState.FAULT, GIB),))
    view = held_by(view_of(faulty), part)
    view = replace(view, node=replace(view.node, sharing=ALL_MEANS))
    assert "accepts no new shares" in refused(view, part).text
