"""Parts of shared devices: what is given, that it is never too much, and that one alone and several never meet."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.grid_model import carry_out
from tests.strategies import (
    FAMILY_BOARDS,
    gpu_on,
    instance_of,
    means,
    placed,
    requests,
    sharing_views,
    uncuttable_gpu,
    view_of,
)
from tranche.core.allocation import (
    Allocation,
    FractionalShare,
    Grant,
    NodeView,
    Phase,
    Slice,
    WholeGpu,
    memory_of,
    overlap,
)
from tranche.core.board import Board
from tranche.core.errors import SharingUnavailable, TrancheError
from tranche.core.grid import Placement
from tranche.core.quantity import GIB, MIB
from tranche.core.request import GpuMemory, GpuShare, Isolation, Request, parse_request
from tranche.core.sharing import RESERVED_MEMORY, GpuPolicy, MachineSharing, Sharing, capacity
from tranche.core.state import ComputeMode, DaemonState, GpuState, InstanceKey, MigMode, MpsDaemon, NodeState
from tranche.planning.decide.allocate import Granted, Waiting, decide
from tranche.planning.steps import DestroyInstance, SetMigMode, StartMps, StopMps

A100 = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")
MPS = MachineSharing(frozenset({Sharing.MPS}), {Sharing.MEMORY_LIMITS: "driver 580.65 is older than 615"}, 48)
ALL = MachineSharing(frozenset(Sharing), {}, 48)
STRENGTH = [Isolation.HARD, Isolation.SOFT, Isolation.NONE]


def machine(*gpus: GpuState, by: MachineSharing = MPS, uses: dict[int, GpuPolicy] | None = None) -> NodeView:
    view = view_of(*gpus)
    words = {gpus[index].uuid: use for index, use in (uses or {}).items()}
    return replace(view, node=replace(view.node, sharing=by), uses=words)


def served(view: NodeView, request: Request) -> tuple[NodeView, Granted]:
    """The view once the request has what it gets now, and what that is."""
    decision = decide(view, request)
    assert isinstance(decision, Granted), decision
    allocation = Allocation(f"a-{len(view.allocations)}", request, decision.grants, Phase.ACTIVE, 0.0)
    after = carry_out(view, decision.plan)
    return replace(after, allocations=(*after.allocations, allocation)), decision


def filled(view: NodeView, request: Request) -> tuple[NodeView, list[Grant], Waiting]:
    """The view once nobody more gets what the request asks for, what was given, and what the next one waits for."""
    given_away: list[Grant] = []
    while isinstance(decision := decide(view, request), Granted):
        view, decision = served(view, request)
        given_away += decision.grants
    return view, given_away, decision


def parts(grants: list[Grant]) -> list[FractionalShare]:
    return [grant for grant in grants if isinstance(grant, FractionalShare)]


def check(view: NodeView) -> None:
    """What must hold of every view that decisions lead to."""
    taken: dict[WholeGpu | Slice, list[FractionalShare]] = defaultdict(list)
    for allocation in view.allocations:
        for grant in allocation.grants:
            if isinstance(grant, FractionalShare):
                taken[grant.device].append(grant)
    for device, there in taken.items():
        (sharing,) = {part.sharing for part in there}
        room = capacity(sharing, memory_of(device, view.node.gpu(device.gpu_uuid)))
        assert sum(part.memory for part in there) <= room
        assert sum(part.compute or 0 for part in there) <= 100
        assert sharing is not Sharing.MEMORY_LIMITS or isinstance(device, WholeGpu)
    held = [(each.id, grant) for each in view.allocations for grant in each.grants]
    for (_, one), (_, other) in combinations(held, 2):
        if overlap(one, other):
            assert isinstance(one, FractionalShare)
            assert isinstance(other, FractionalShare)
            assert one.device == other.device


@given(st.data(), means(), st.sampled_from(FAMILY_BOARDS))
def test_nothing_is_given_twice_and_nothing_below_what_is_asked_for(
    data: st.DataObject, offered: MachineSharing, board: Board
) -> None:
    """Whoever comes and goes on a machine of one family, with a GPU that cannot be cut beside it."""
    modes = st.sampled_from([MigMode.ENABLED, MigMode.DISABLED])
    gpus = [gpu_on(board, 0, mode=data.draw(modes)), uncuttable_gpu(1), uncuttable_gpu(2)]
    uses = {index: data.draw(st.sampled_from([GpuPolicy.AUTO, *GpuPolicy])) for index in range(3)}
    view = machine(*gpus, by=offered, uses=uses)
    for number in range(data.draw(st.integers(1, 25))):
        if view.allocations and data.draw(st.integers(0, 3)) == 0:
            gone = data.draw(st.sampled_from(view.allocations))
            view = replace(view, allocations=tuple(each for each in view.allocations if each is not gone))
        amounts = st.integers(1, 8).map(lambda gib: GpuMemory(gib * GIB))
        demand = data.draw(amounts | st.sampled_from([GpuShare(Fraction(1, 5)), GpuShare(Fraction(1, 2))]))
        request = data.draw(requests() | st.builds(Request, st.just(demand), st.sampled_from(Isolation)))
        try:
            decision = decide(view, request)
        except TrancheError:
            continue
        if isinstance(decision, Waiting):
            continue
        for grant in decision.grants:
            assert request.isolation is Isolation.ANY or STRENGTH.index(grant.walls.isolation) <= STRENGTH.index(
                request.isolation
            )
            use = view.use_of(grant.gpu_uuid)
            assert not isinstance(grant, FractionalShare) or grant.sharing in offered.offered
            assert not isinstance(grant, FractionalShare) or use in (GpuPolicy.AUTO, GpuPolicy.SHARED)
            assert use is GpuPolicy.AUTO or grant.slot is None or use is GpuPolicy.MIG
            assert request.compute is None or (isinstance(grant, FractionalShare) and grant.compute == request.compute)
        allocation = Allocation(f"a-{number}", request, decision.grants, Phase.ACTIVE, 0.0)
        view = carry_out(view, decision.plan)
        view = replace(view, allocations=(*view.allocations, allocation))
        check(view)


@given(sharing_views(), requests())
def test_a_machine_that_shares_by_nothing_gives_what_it_gave_before_there_were_parts(
    view: NodeView, request: Request
) -> None:
    assume(request.compute is None)
    view = replace(view, node=replace(view.node, sharing=MachineSharing()), uses={})

    def outcome(isolation: Isolation) -> object:
        try:
            decision = decide(view, replace(request, isolation=isolation))
        except TrancheError as error:
            return type(error)
        if isinstance(decision, Waiting):
            return [(each.gpu_index, each.reason) for each in decision.obstacles]
        return decision.grants, decision.plan.steps, decision.note

    assert len({repr(outcome(isolation)) for isolation in Isolation}) == 1


@pytest.mark.parametrize(
    "by", [MPS, MachineSharing(frozenset({Sharing.MEMORY_LIMITS})), ALL], ids=["mps", "limits", "all"]
)
@pytest.mark.parametrize("amount", ["3G", "3Gi"])
def test_four_share_a_t4_and_a_fifth_waits(by: MachineSharing, amount: str) -> None:
    view, grants, waiting = filled(machine(uncuttable_gpu(), by=by), parse_request(gpu_memory=amount))
    assert len(grants) == 4
    (sharing,) = {part.sharing for part in parts(grants)}
    assert sharing is (Sharing.MPS if by is MPS else Sharing.MEMORY_LIMITS)
    (found,) = waiting.obstacles
    assert found.reason == "NoRoom"
    assert found.missing_memory > 0
    assert set(found.allocation_ids) == {each.id for each in view.allocations}


def test_an_amount_of_memory_is_the_programs_and_its_context_comes_on_top() -> None:
    t4 = uncuttable_gpu()
    _, decision = served(machine(t4), parse_request(gpu_memory="3Gi"))
    (part,) = parts(list(decision.grants))
    assert part.memory == 3 * GIB + t4.context_memory


@pytest.mark.parametrize("share", [2, 3, 4, 5, 10])
@pytest.mark.parametrize("by", [MPS, ALL], ids=["mps", "limits"])
def test_shares_that_make_one_gpu_fit_together(share: int, by: MachineSharing) -> None:
    request = Request(GpuShare(Fraction(1, share)))
    _, grants, _ = filled(machine(uncuttable_gpu(), by=by), request)
    assert len(parts(grants)) == share


@pytest.mark.parametrize("sharing", Sharing)
def test_halves_share_what_the_driver_leaves_of_the_memory(sharing: Sharing) -> None:
    t4 = uncuttable_gpu()
    request = parse_request(gpu="0.5", isolation="none")
    view, grants, _ = filled(machine(t4, by=MachineSharing(frozenset({sharing}), {}, 48)), request)
    (size,) = {part.memory for part in parts(grants)}
    assert 0 <= t4.memory_free - RESERVED_MEMORY[sharing] - 2 * size < 2 * MIB
    assert len(view.allocations) == 2


def test_gpus_of_which_the_driver_keeps_more_or_less_are_told_apart() -> None:
    view = machine(uncuttable_gpu(0, reserved=10 * GIB), uncuttable_gpu(1))
    _, decision = served(view, parse_request(gpu_memory="7G"))
    assert [grant.gpu_uuid for grant in parts(list(decision.grants))] == [view.node.gpus[1].uuid]


def test_a_whole_gpu_and_a_shared_one_are_never_the_same() -> None:
    t4 = uncuttable_gpu()
    small, whole = parse_request(gpu_memory="3G"), parse_request(gpus="1")
    shared, _ = served(machine(t4), small)
    waits = decide(shared, whole)
    assert isinstance(waits, Waiting)
    assert waits.obstacles[0].text == "shared by a-0"
    alone, _ = served(machine(t4), whole)
    waits = decide(alone, small)
    assert isinstance(waits, Waiting)
    assert waits.obstacles[0].text == "held whole by a-0"


@pytest.mark.parametrize(
    "by", [MPS, ALL, MachineSharing(frozenset({Sharing.TIME_SLICING}))], ids=["mps", "limits", "turns"]
)
def test_nothing_more_is_given_of_an_uncut_gpu_on_which_somebody_turned_mig_mode_on(by: MachineSharing) -> None:
    request = parse_request(gpu="0.1", isolation="none")
    view, _ = served(machine(gpu_on(A100, mode=MigMode.DISABLED), by=by, uses={0: GpuPolicy.SHARED}), request)
    assert isinstance(view.allocations[0].grants[0], FractionalShare)
    cut = machine(gpu_on(A100, mode=MigMode.ENABLED), by=by, uses={0: GpuPolicy.SHARED})
    waits = decide(replace(cut, allocations=view.allocations), request)
    assert isinstance(waits, Waiting)
    assert "MIG mode was turned on" in waits.obstacles[0].text


def test_parts_are_packed_so_that_whole_gpus_stay() -> None:
    view = machine(*(uncuttable_gpu(index) for index in range(3)))
    for _ in range(4):
        view, _ = served(view, parse_request(gpu_memory="3G"))
    assert {grant.gpu_uuid for each in view.allocations for grant in each.grants} == {view.node.gpus[0].uuid}
    view, _ = served(view, parse_request(gpus="2"))


def test_a_part_goes_where_the_least_room_is_left() -> None:
    view = machine(uncuttable_gpu(0), uncuttable_gpu(1))
    view, _ = served(view, parse_request(gpu="0.5"))
    view, _ = served(view, parse_request(gpu="0.5", count="1"))
    full = {grant.gpu_uuid for each in view.allocations for grant in each.grants}
    assert len(full) == 1
    view, _ = served(view, parse_request(gpu="0.2"))
    view, decision = served(view, parse_request(gpu="0.1"))
    assert decision.grants[0].gpu_uuid not in full


def test_several_shares_lie_on_several_gpus() -> None:
    gpus = [uncuttable_gpu(index) for index in range(3)]
    _, decision = served(machine(*gpus, by=ALL), parse_request(gpu="0.2", count="3"))
    assert len({grant.gpu_uuid for grant in decision.grants}) == 3


def test_several_shares_are_never_given_by_mps_since_a_program_can_use_one_daemon_only() -> None:
    by = MachineSharing(frozenset(Sharing) - {Sharing.MEMORY_LIMITS}, {}, 48)
    view = machine(uncuttable_gpu(0), uncuttable_gpu(1), by=by)
    with pytest.raises(SharingUnavailable, match="one program can use it on only one GPU"):
        served(view, parse_request(gpu="0.2", count="2"))
    with pytest.raises(SharingUnavailable, match="on only one GPU"):
        served(view, parse_request(gpu="0.2", compute="30", count="2"))
    _, decision = served(view, parse_request(gpu="0.2", count="2", isolation="any"))
    assert {grant.mechanism for grant in decision.grants} == {"time-slicing"}


def test_one_device_has_one_mechanism() -> None:
    turns = machine(uncuttable_gpu(), by=MachineSharing(frozenset({Sharing.TIME_SLICING})))
    turns, _ = served(turns, parse_request(gpu="0.2", isolation="none"))
    waits = decide(replace(turns, node=replace(turns.node, sharing=ALL)), parse_request(gpu="0.2"))
    assert isinstance(waits, Waiting)
    assert waits.obstacles[0].text == "shared by time-slicing, which the request does not accept"
    view = machine(uncuttable_gpu(), by=ALL)
    view, _ = served(view, parse_request(gpu="0.2", compute="30"))
    view, decision = served(view, parse_request(gpu="0.2"))
    assert decision.mechanism == "mps"


def test_turns_are_taken_only_by_who_asks_for_no_wall() -> None:
    turns = MachineSharing(frozenset({Sharing.TIME_SLICING}))
    view = machine(uncuttable_gpu(), by=turns)
    with pytest.raises(SharingUnavailable, match="not offered here"):
        decide(view, parse_request(gpu="0.2"))
    _, decision = served(view, parse_request(gpu="0.2", isolation="none"))
    assert decision.mechanism == "time-slicing"


def test_a_ceiling_is_kept_by_mps_alone_and_ceilings_add_up_to_all_compute() -> None:
    view = machine(uncuttable_gpu(), by=ALL)
    for percent in ("60", "40"):
        view, decision = served(view, parse_request(gpu_memory="1G", compute=percent))
        assert parts(list(decision.grants))[0].compute == int(percent)
    waits = decide(view, parse_request(gpu_memory="1G", compute="1"))
    assert isinstance(waits, Waiting)
    assert "ceilings of 100%" in waits.obstacles[0].text
    served(view, parse_request(gpu_memory="1G"))


@pytest.mark.parametrize("percent", [1, 7, 14, 15, 30, 50, 100])
def test_a_ceiling_in_a_slice_is_at_most_that_of_the_gpu_and_never_less_than_mps_gives_at_least(percent: int) -> None:
    gpu = gpu_on(A100, mode=MigMode.ENABLED)
    view = machine(gpu, by=MachineSharing(frozenset({Sharing.MPS})))
    for _ in range(100 // percent):
        decision = decide(view, parse_request(gpu_memory="1G", compute=str(percent)))
        if isinstance(decision, Waiting):
            break
        view, decision = served(view, parse_request(gpu_memory="1G", compute=str(percent)))
        (part,) = parts(list(decision.grants))
        assert part.compute == percent
        if part.slot is None:
            assert percent == 1, "of the largest slice that is less than a pair too"
            continue
        profile = gpu.profile(part.slot.profile)
        assert profile is not None
        assert profile.sm is not None
        given = profile.sm * percent // 200 * 2
        assert 2 <= given <= percent / 100 * profile.sm < percent / 100 * (A100.sm or 0)


def test_mps_serves_no_more_programs_than_it_can() -> None:
    few = MachineSharing(frozenset({Sharing.MPS}), mps_clients=3)
    _, grants, waiting = filled(machine(uncuttable_gpu(), by=few), parse_request(gpu_memory="1G"))
    assert len(grants) == 3
    assert waiting.obstacles[0].text == "shared by 3 holders, and MPS accepts no more programs there"


def test_an_old_gpu_is_not_shared_by_mps() -> None:
    old = replace(uncuttable_gpu(), architecture="Pascal", compute_capability=(6, 1))
    with pytest.raises(SharingUnavailable, match=r"MPS \(Pascal is older than Volta\)"):
        decide(machine(old), parse_request(gpu="0.2"))


def test_a_slice_comes_before_a_part_and_a_gpu_without_mig_before_one_that_can_be_cut() -> None:
    view = machine(gpu_on(A100, 0, mode=MigMode.DISABLED), uncuttable_gpu(1))
    _, decision = served(view, parse_request(gpu_memory="4Gi"))
    assert decision.mechanism == "mig"
    _, decision = served(view, parse_request(gpu_memory="4Gi", compute="20"))
    assert decision.grants[0].gpu_uuid == view.node.gpus[1].uuid


def cut_by_hand() -> NodeView:
    """An A100 in two idle 3g.20gb that Tranche did not make."""
    profile = next(each for each in placed(A100) if str(each.name) == "3g.20gb")
    return machine(gpu_on(A100, instances=[instance_of(profile, Placement(start, 4)) for start in (0, 4)]))


def test_parts_of_a_slice_are_given_where_no_slice_of_their_own_is_to_be_had() -> None:
    """Two large slices that somebody cut by hand: nobody may destroy them, and four programs share one of them."""
    view, grants, _ = filled(cut_by_hand(), parse_request(gpu_memory="4G"))
    (gpu,) = view.node
    assert {part.device for part in parts(grants)} == {
        Slice(gpu.uuid, each.profile, each.placement) for each in gpu.instances
    }
    assert [part.device for part in parts(grants)][:4] == [parts(grants)[0].device] * 4
    assert len(grants) == 8
    check(view)


def cut_with_media(*others: tuple[str, int, int]) -> NodeView:
    """An A100 with an idle 1g.5gb+me at 0 and other slices, of which somebody has the first."""
    profiles = {str(each.name): each for each in placed(A100)}
    slices = [("1g.5gb+me", 0, 1), *others]
    gpu = gpu_on(A100, instances=[instance_of(profiles[name], Placement(start, size)) for name, start, size in slices])
    held = Slice(gpu.uuid, gpu.instances[1].profile, gpu.instances[1].placement)
    request = parse_request(mig_profile=str(held.profile))
    return replace(machine(gpu), allocations=(Allocation("a-0", request, (held,), Phase.ACTIVE, 0.0),))


def test_a_slice_with_attributes_is_shared_by_nobody_who_does_not_name_it() -> None:
    view = cut_with_media(("3g.20gb", 4, 4), ("1g.5gb", 1, 1))
    after, decision = served(view, parse_request(gpu_memory="2Gi"))
    assert [str(grant.slot.profile) for grant in decision.grants if grant.slot is not None] == ["1g.5gb"]
    _, named = served(after, parse_request(mig_profile="1g.5gb+me"))
    assert named.plan.empty
    full = cut_with_media(("3g.20gb", 4, 4), ("2g.10gb", 2, 2), ("1g.5gb", 1, 1))
    _, grants, _ = filled(full, parse_request(gpu_memory="2Gi"))
    assert "1g.5gb+me" not in {str(grant.slot.profile) for grant in grants if grant.slot is not None}


@pytest.mark.parametrize("isolation", ["none", "soft", "hard"])
@pytest.mark.parametrize("mode", [MigMode.ENABLED, MigMode.DISABLED])
@pytest.mark.parametrize("by", [MPS, ALL])
def test_all_of_a_gpu_is_shared_with_nobody(isolation: str, mode: MigMode, by: MachineSharing) -> None:
    for gpu in (gpu_on(A100, mode=mode), uncuttable_gpu()):
        _, decision = served(machine(gpu, by=by), parse_request(gpu="1", isolation=isolation))
        (grant,) = decision.grants
        assert grant.walls.isolation is Isolation.HARD


def test_the_first_part_of_a_slice_starts_its_daemon_and_the_others_find_it() -> None:
    view, first = served(cut_by_hand(), parse_request(gpu_memory="4G"))
    assert [type(step) for step in first.plan.steps] == [StartMps]
    view, second = served(view, parse_request(gpu_memory="4G"))
    assert second.plan.empty
    assert second.grants[0].slot == first.grants[0].slot


def test_a_gpu_goes_from_slices_to_parts_only_when_nothing_is_on_it() -> None:
    profile = next(each for each in placed(A100) if str(each.name) == "3g.20gb")
    spot = Placement(0, 4)
    gpu = gpu_on(A100, instances=[instance_of(profile, spot)])
    key = InstanceKey(gpu.uuid, profile.name, spot)
    view = replace(machine(gpu, uses={0: GpuPolicy.SHARED}), owned=frozenset({key}))
    _, decision = served(view, parse_request(gpu_memory="4G"))
    assert [type(step) for step in decision.plan.steps][:2] == [DestroyInstance, SetMigMode]
    assert isinstance(decision.plan.steps[-1], StartMps)
    assert decision.note.startswith(
        "a share of GPU 0, with MIG mode turned off: 4.24 GiB by MPS (memory of each process limited by the driver"
    )
    held = Allocation(
        "a-9", parse_request(mig_profile="3g.20gb"), (Slice(gpu.uuid, profile.name, spot),), Phase.ACTIVE, 0.0
    )
    assert isinstance(decide(replace(view, allocations=(held,)), parse_request(gpu_memory="4G")), Waiting)


def test_an_idle_daemon_ends_before_its_gpu_is_given_whole_or_cut() -> None:
    gpu = replace(gpu_on(A100, mode=MigMode.DISABLED), daemons=(MpsDaemon(None, "", DaemonState.READY, GIB),))
    for request in (parse_request(gpus="1"), parse_request(gpu_memory="4Gi", isolation="hard")):
        _, decision = served(machine(gpu), request)
        assert isinstance(decision.plan.steps[0], StopMps)


@pytest.mark.parametrize("state", [None, DaemonState.LOST, DaemonState.FAULT])
def test_nobody_more_is_let_in_beside_limits_that_are_lost(state: DaemonState | None) -> None:
    view, decision = served(machine(uncuttable_gpu()), parse_request(gpu_memory="3G"))
    (part,) = parts(list(decision.grants))
    gpu = view.node.gpus[0]
    daemons = () if state is None else (replace(gpu.daemons[0], state=state),)
    held = view.allocations[0]._replace(grants=(part._replace(unlimited=state is None),))
    view = replace(view, node=replace(view.node, gpus=(replace(gpu, daemons=daemons),)), allocations=(held,))
    waits = decide(view, parse_request(gpu_memory="1G"))
    assert isinstance(waits, Waiting)
    assert waits.obstacles[0].reason == "GpuBusy"


@pytest.mark.parametrize(
    ("use", "options", "mechanism"),
    [
        (GpuPolicy.AUTO, {"gpu_memory": "4G"}, "mps"),
        (GpuPolicy.AUTO, {"gpu_memory": "4G", "isolation": "hard"}, "mig"),
        (GpuPolicy.MIG, {"gpu_memory": "4G"}, "mig"),
        (GpuPolicy.SHARED, {"gpu_memory": "4G"}, "mps"),
        (
            GpuPolicy.OFF,
            {"gpu_memory": "4G"},
            "SharingUnavailable: is only granted whole: its policy is sharing=off",
        ),
        (
            GpuPolicy.MIG,
            {"gpu_memory": "4G", "compute": "9"},
            "SharingUnavailable: is shared only in slices: its policy is",
        ),
        (
            GpuPolicy.SHARED,
            {"mig_profile": "1g.5gb"},
            "SharingUnavailable: is not partitioned for requests: its policy is",
        ),
        (
            GpuPolicy.OFF,
            {"mig_profile": "1g.5gb"},
            "SharingUnavailable: is not partitioned for requests: its policy is",
        ),
        (GpuPolicy.SHARED, {"gpus": "1"}, "whole"),
        (GpuPolicy.OFF, {"gpus": "1"}, "whole"),
        (GpuPolicy.OFF, {"gpu_memory": "30G"}, "whole"),
        (GpuPolicy.SHARED, {"gpu_memory": "30G"}, "whole"),
    ],
)
def test_the_administrators_word_wins(use: GpuPolicy, options: dict[str, str], mechanism: str) -> None:
    view = machine(gpu_on(A100, mode=MigMode.DISABLED), uses={0: use})
    refusal = mechanism.partition("SharingUnavailable: ")[2]
    if refusal:
        with pytest.raises(SharingUnavailable, match=refusal):
            decide(view, parse_request(**options))
        return
    _, decision = served(view, parse_request(**options))
    assert decision.mechanism == mechanism


def test_a_machine_without_means_says_of_each_why_not() -> None:
    reasons = {
        Sharing.MEMORY_LIMITS: "driver 580.65 is older than 615",
        Sharing.MPS: "nvidia-cuda-mps-control is missing",
    }
    view = machine(uncuttable_gpu(), by=MachineSharing(refused=reasons))
    with pytest.raises(SharingUnavailable) as caught:
        decide(view, parse_request(gpu="0.2"))
    assert caught.value.message == (
        "no GPU on this machine can serve --gpu 0.2: does not support MIG; a part of it needs the driver's memory limits "
        "(driver 580.65 is older than 615) or MPS (nvidia-cuda-mps-control is missing)"
    )
    assert caught.value.hint == "ask for a whole GPU with --gpus 1"
    with pytest.raises(SharingUnavailable, match="a part with hard isolation requires MIG"):
        decide(machine(uncuttable_gpu(), by=ALL), parse_request(gpu="0.2", isolation="hard"))


def test_a_node_that_was_not_asked_shares_nothing() -> None:
    view = NodeView(NodeState((uncuttable_gpu(),)))
    with pytest.raises(SharingUnavailable):
        decide(view, parse_request(gpu="0.2", isolation="any"))


@pytest.mark.parametrize("options", [{"gpus": "1"}, {"gpu_memory": "4G"}], ids=["whole", "part"])
def test_nothing_is_given_of_a_gpu_that_an_administrator_has_prohibited(options: dict[str, str]) -> None:
    closed = replace(uncuttable_gpu(), compute_mode=ComputeMode.PROHIBITED)
    request = parse_request(**options)
    decision = decide(machine(closed), request)
    assert isinstance(decision, Waiting)
    assert "PROHIBITED" in decision.reasons[0]
    given = decide(machine(closed, uncuttable_gpu(1)), request)
    assert isinstance(given, Granted)
    assert [each.gpu_uuid for each in given.grants] == [uncuttable_gpu(1).uuid]


def test_nobody_joins_others_on_a_gpu_that_is_prohibited_meanwhile() -> None:
    request = parse_request(gpu_memory="4G")
    view, _ = served(machine(uncuttable_gpu()), request)
    (gpu,) = view.node.gpus
    closed = replace(view.node, gpus=(replace(gpu, compute_mode=ComputeMode.PROHIBITED),))
    decision = decide(replace(view, node=closed), request)
    assert isinstance(decision, Waiting)
    assert "PROHIBITED" in decision.reasons[0]


@pytest.mark.parametrize("share", ["0.0001", "0.01"])
def test_a_share_that_holds_no_context_is_refused_with_the_smallest_that_does(share: str) -> None:
    view = machine(uncuttable_gpu())
    with pytest.raises(
        SharingUnavailable, match=r"a share smaller than 0\.02 of it has no room for a CUDA context"
    ) as caught:
        decide(view, parse_request(gpu=share))
    assert caught.value.hint == "ask for --gpu 0.02 or more"
    assert isinstance(decide(view, parse_request(gpu="0.02")), Granted)


@pytest.mark.parametrize("asked", [{"gpu": "0.001"}, {"gpu_memory": "1G", "compute": "25"}])
def test_who_may_have_a_gpu_whole_or_not_at_all_is_told_to_ask_for_it(asked: dict[str, str]) -> None:
    with pytest.raises(SharingUnavailable) as caught:
        decide(machine(uncuttable_gpu(), by=ALL, uses={0: GpuPolicy.OFF}), parse_request(**asked))
    assert caught.value.hint == "ask for a whole GPU with --gpus 1"


@pytest.mark.parametrize("offered", [{Sharing.MPS}, {Sharing.TIME_SLICING}, {*Sharing}])
@pytest.mark.parametrize("isolation", ["soft", "none"])
def test_the_share_that_is_named_instead_of_a_tiny_one_is_served(offered: set[Sharing], isolation: str) -> None:
    view = machine(uncuttable_gpu(), by=MachineSharing(frozenset(offered)))
    with pytest.raises(SharingUnavailable) as caught:
        decide(view, parse_request(gpu="0.0001", isolation=isolation))
    words = caught.value.hint.split()
    named = words[words.index("--gpu") + 1] if "--gpu" in words else None
    assert (named is None) == (isolation == "soft" and offered == {Sharing.TIME_SLICING})
    assert named is None or isinstance(decide(view, parse_request(gpu=named, isolation=isolation)), Granted)
