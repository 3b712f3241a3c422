"""explain(): it agrees with decide(), and every remedy that it names works when it is tried."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import (
    FAMILY_BOARDS,
    gpu_on,
    instance_of,
    node_views,
    repeated,
    requests_for,
    sharing_views,
    uncuttable_gpu,
    view_of,
)
from tranche.core.allocation import Allocation, FractionalShare, Grant, NodeView, Phase, Slice, WholeGpu
from tranche.core.errors import TrancheError
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.request import Isolation, Request, parse_request
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import GpuInstance, GpuProcess, GpuState, MigMode
from tranche.planning.decide.allocate import Granted, Waiting, decide
from tranche.planning.decide.foresee import without
from tranche.planning.decide.queue import WaitingRequest, may_start
from tranche.planning.explain.explanation import explain
from tranche.planning.explain.remedies import RemedyKind

A100 = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")


def slice_at(name: str, start: int, *, pid: int | None = None) -> GpuInstance:
    profile = A100.profile(parse_profile(name))
    assert profile is not None
    processes = () if pid is None else (GpuProcess(pid, "python"),)
    return instance_of(profile, Placement(start, profile.size), processes=processes)


def held(gpu: GpuState, *ids: str) -> list[Allocation]:
    """An active allocation, named in order, for each instance of the GPU."""
    return [
        Allocation(id_, parse_request(mig_profile=str(i.profile)), (_grant(gpu, i),), Phase.ACTIVE, 0.0)
        for id_, i in zip(ids, gpu.instances, strict=True)
    ]


def _grant(gpu: GpuState, instance: GpuInstance) -> Grant:
    return Slice(gpu.uuid, instance.profile, instance.placement)


def owned_view(gpu: GpuState, *ids: str) -> NodeView:
    return view_of(gpu, allocations=held(gpu, *ids), owned=[gpu.key(each) for each in gpu.instances])


@given(st.data())
def test_it_fits_exactly_when_decide_grants(data: st.DataObject) -> None:
    view = data.draw(node_views() | sharing_views())
    request = data.draw(requests_for(view))
    foreign = data.draw(st.booleans())
    asked = data.draw(st.lists(requests_for(view), max_size=2))
    waiters = [WaitingRequest(f"w-{number}", each) for number, each in enumerate(asked)]
    explanation = explain(view, request, waiters, adopt_foreign_destroy=foreign)
    queue = [*waiters, WaitingRequest("me", request)]
    try:
        decision = may_start(view, queue, "me", adopt_foreign_destroy=foreign)
    except TrancheError:
        assert explanation.impossible is not None
        assert not explanation.granted
        return
    assert explanation.impossible is None
    assert explanation.granted == (decision if isinstance(decision, Granted) else None), "it is served as was foretold"
    if isinstance(decision, Waiting):
        assert decision.obstacles == tuple(each.obstacle for each in explanation.gpus if each.obstacle is not None)
    assert explanation.summary


@given(st.data())
def test_every_remedy_works(data: st.DataObject) -> None:
    view = data.draw(node_views(max_gpus=3) | sharing_views(max_gpus=3))
    _try_remedies(view, data.draw(requests_for(view)))


@given(st.data(), st.integers(17, 24))
def test_every_remedy_on_a_large_machine_works(data: st.DataObject, gpus: int) -> None:
    view = repeated(data.draw(node_views() | sharing_views()), gpus)
    request = data.draw(requests_for(view))
    _try_remedies(view, request)
    explanation = explain(view, request)
    assert len(explanation.gpus) <= 16
    assert sum(1 + each.alike for each in explanation.gpus) + explanation.answers.unnamed == gpus
    assert explanation.advice.looked_at < gpus


def _try_remedies(view: NodeView, request: Request) -> None:
    explanation = explain(view, request)
    order = list(RemedyKind)
    positions = [order.index(each.kind) for each in explanation.remedies]
    assert positions == sorted(positions)
    for remedy in explanation.remedies:
        match remedy.kind:
            case RemedyKind.PREEMPT:
                raise AssertionError("no command is preemptible")
            case RemedyKind.TIME_LIMIT:
                raise AssertionError("no request is ahead")
            case RemedyKind.OTHER_SLICE | RemedyKind.WEAKER_FENCE:
                assert remedy.request is not None
                assert isinstance(decide(view, remedy.request), Granted)
            case RemedyKind.WAIT:
                assert remedy.allocation_ids or remedy.process_ids
                ended = without(view, remedy.allocation_ids, remedy.process_ids)
                assert isinstance(decide(ended, request), Granted)
            case RemedyKind.UNCORDON:
                assert isinstance(decide(replace(view, withheld=()), request), Granted)
            case RemedyKind.DESTROY_FOREIGN:
                assert remedy.instances
                assert not set(remedy.instances) & view.owned
                ended = without(view, remedy.allocation_ids, remedy.process_ids)
                assert isinstance(decide(ended, request, adopt_foreign_destroy=True), Granted)
            case RemedyKind.RECUT:
                ended = without(view, remedy.allocation_ids)
                assert isinstance(decide(ended, request), Granted)
            case RemedyKind.OTHER_MODEL:
                if "drop" in remedy.text:
                    assert isinstance(decide(view, replace(request, gpu_model="")), Granted)
            case RemedyKind.STRONGER_FENCE:
                assert explanation.granted is not None
                ended = without(view, remedy.allocation_ids, remedy.process_ids)
                assert remedy.request is not None
                for asked in (remedy.request,) if "--isolation hard" in remedy.text else (remedy.request, request):
                    later = decide(ended, asked)
                    assert isinstance(later, Granted)
                    assert all(grant.walls.isolation is Isolation.HARD for grant in later.grants)


@given(st.data())
def test_a_request_that_waits_on_healthy_gpus_is_told_what_would_help(data: st.DataObject) -> None:
    view = data.draw(node_views(max_gpus=3) | sharing_views(max_gpus=3))
    request = data.draw(requests_for(view))
    explanation = explain(view, request)
    healthy = not view.changing and not any(gpu.lost or gpu.mode_pending for gpu in view.node)
    if explanation.granted or explanation.impossible or not healthy:
        return
    assert {RemedyKind.WAIT, RemedyKind.DESTROY_FOREIGN} & {each.kind for each in explanation.remedies}


@given(st.data())
def test_no_fewer_allocations_than_those_named_make_room(data: st.DataObject) -> None:
    view = data.draw(node_views(max_gpus=2) | sharing_views(max_gpus=2))
    request = data.draw(requests_for(view))
    for remedy in explain(view, request).remedies:
        if remedy.kind is RemedyKind.WAIT and len(remedy.allocation_ids) + len(remedy.process_ids) > 1:
            for allocation in view.allocations:
                assert not isinstance(decide(without(view, [allocation.id]), request), Granted)


def test_waiting_for_the_one_that_is_enough() -> None:
    gpu = gpu_on(A100, instances=[slice_at("1g.5gb", 0, pid=1), slice_at("1g.5gb", 1, pid=2), slice_at("3g.20gb", 4)])
    explanation = explain(owned_view(gpu, "a-1", "a-2", "a-3"), parse_request(mig_profile="3g.20gb"))
    waits = [each for each in explanation.remedies if each.kind is RemedyKind.WAIT]
    assert [each.allocation_ids for each in waits] == [("a-3",)]
    assert waits[0].text == "wait for a-3 to end"


def test_a_fragmented_gpu_names_its_slices_and_a_move() -> None:
    """Three 1g at 0, 2 and 4: five slices are free, and 3g.20gb fits only after the one at 4 moves."""
    gpu = gpu_on(A100, instances=[slice_at("1g.5gb", start, pid=start + 1) for start in (0, 2, 4)])
    explanation = explain(owned_view(gpu, "a-1", "a-2", "a-3"), parse_request(mig_profile="3g.20gb"))
    answer = explanation.gpus[0].obstacle
    assert answer is not None
    assert answer.reason == "Fragmented"
    assert answer.allocation_ids == ("a-1", "a-2", "a-3")
    moves = [each.text for each in explanation.remedies if each.kind is RemedyKind.RECUT]
    assert moves == ["move a-3 to GPU 0 (stop and restart each of them)"]


def test_a_gpu_full_of_single_slices_is_not_called_fragmented() -> None:
    """One memory slice is free, but no arrangement gives an eighth 1g.5gb a place."""
    gpu = gpu_on(A100, instances=[slice_at("1g.5gb", start, pid=start + 1) for start in range(7)])
    ids = [f"a-{number}" for number in range(7)]
    explanation = explain(owned_view(gpu, *ids), parse_request(mig_profile="1g.5gb"))
    answer = explanation.gpus[0].obstacle
    assert answer is not None
    assert (answer.reason, answer.missing_slices) == ("NoRoom", 1)
    assert [each.text for each in explanation.remedies] == ["wait for a-0 to end"]
    whole = explain(owned_view(gpu, *ids), parse_request(mig_profile="7g.40gb"))
    assert [each.text for each in whole.remedies if each.kind is RemedyKind.WAIT] == [
        f"wait for 7 holders to end: {', '.join(ids)}"
    ]


def test_missing_slices_and_the_process_in_the_way_are_named() -> None:
    gpu = gpu_on(A100, instances=[slice_at("7g.40gb", 0, pid=4242)])
    explanation = explain(view_of(gpu), parse_request(mig_profile="2g.10gb"))
    answer = explanation.gpus[0].obstacle
    assert answer is not None
    assert (answer.reason, answer.missing_slices) == ("NoRoom", 2)
    assert [(each.kind, each.process_ids) for each in explanation.remedies] == [(RemedyKind.DESTROY_FOREIGN, (4242,))]
    assert explanation.remedies[0].text == (
        "wait for python (pid 4242) to end, then let Tranche destroy instances that it did not create "
        "(7g.40gb at 0:8 of GPU 0): --adopt-foreign=destroy"
    )


def test_a_smaller_slice_that_fits_now_is_named_first() -> None:
    gpu = gpu_on(A100, instances=[slice_at("4g.20gb", 0, pid=1), slice_at("2g.10gb", 4, pid=2)])
    explanation = explain(owned_view(gpu, "a-1", "a-2"), parse_request(gpu="0.5"))
    first = explanation.remedies[0]
    assert first.kind is RemedyKind.OTHER_SLICE
    assert first.request == parse_request(mig_profile="1g.10gb")


def test_a_request_behind_others_is_told_whom_it_waits_for() -> None:
    view = view_of(gpu_on(A100))
    waiters = [WaitingRequest("w-1", parse_request(mig_profile="7g.40gb"))]
    explanation = explain(view, parse_request(mig_profile="1g.5gb"), waiters)
    assert [each.obstacle.reason for each in explanation.gpus if each.obstacle] == ["QueuedBehind"]
    assert explanation.remedies[0].text == "wait until earlier requests have started: w-1"


def test_a_request_behind_others_on_a_full_machine_is_also_told_who_holds_it() -> None:
    view = owned_view(gpu_on(A100, instances=[slice_at("7g.40gb", 0)]), "a-1")
    waiters = [WaitingRequest(name, parse_request(mig_profile="7g.40gb")) for name in ("w-1", "w-2")]
    waits = explain(view, parse_request(mig_profile="1g.5gb"), waiters).remedies
    assert [(each.text, each.allocation_ids) for each in waits] == [
        ("wait until earlier requests have started: w-1, w-2; without these, wait for a-1 to end", ("a-1",))
    ]


def test_many_requests_ahead_are_counted_and_those_for_other_gpus_are_not() -> None:
    view = owned_view(gpu_on(A100, instances=[slice_at("7g.40gb", 0)]), "a-1")
    waiters = [WaitingRequest(f"w-{number}", parse_request(mig_profile="1g.5gb")) for number in range(6)]
    waiters.insert(0, WaitingRequest("other", parse_request(gpus="1", gpu_model="H100")))
    (first, *_) = explain(view, parse_request(mig_profile="1g.5gb"), waiters).remedies
    ahead = "w-0, w-1, w-2, w-3 and 2 more"
    assert first.text == f"wait until earlier requests have started: {ahead}; without these, wait for a-1 to end"


@given(st.data())
def test_who_would_have_to_end_without_the_requests_ahead_would_make_room(data: st.DataObject) -> None:
    view = data.draw(node_views(max_gpus=2) | sharing_views(max_gpus=2))
    first, request = (data.draw(requests_for(view)) for _ in range(2))
    for remedy in explain(view, request, [WaitingRequest("w-1", first)]).remedies:
        if remedy.kind is RemedyKind.WAIT and "without these" in remedy.text:
            ended = without(view, remedy.allocation_ids, remedy.process_ids)
            assert isinstance(decide(ended, request), Granted)


def test_too_much_memory_names_products_that_have_it() -> None:
    explanation = explain(view_of(gpu_on(A100)), parse_request(gpu_memory="100Gi"))
    assert explanation.impossible is not None
    answer = explanation.gpus[0].obstacle
    assert answer is not None
    assert (answer.reason, answer.missing_memory) == ("MemoryTooSmall", 60 * 1024**3)
    models = [each.text for each in explanation.remedies if each.kind is RemedyKind.OTHER_MODEL]
    assert models == ["another GPU model has it: NVIDIA H200, NVIDIA H20-3e, NVIDIA B200"]


def test_a_large_machine_is_explained_in_a_few_lines_that_say_how_many_are_left_out() -> None:
    gpus = [replace(gpu_on(A100, n), instances=(slice_at("7g.40gb", 0, pid=n + 1),)) for n in range(40)]
    explanation = explain(view_of(*gpus), parse_request(mig_profile="2g.10gb"))
    assert [each.text for each in explanation.gpus] == [
        "0 of 8 memory slices free, but 2g.10gb needs 2 (and 39 more GPUs like it)"
    ]
    assert explanation.advice.looked_at == 16
    assert [each.process_ids for each in explanation.remedies] == [(1,)]


def test_a_share_of_a_gpu_without_mig_says_what_is_missing() -> None:
    explanation = explain(view_of(uncuttable_gpu()), parse_request(gpu="0.5"))
    assert [each.obstacle.reason for each in explanation.gpus if each.obstacle] == ["SharingUnavailable"]
    assert explanation.impossible is not None


def test_dropping_the_model_is_offered_when_another_gpu_is_free() -> None:
    busy = replace(gpu_on(A100, mode=MigMode.DISABLED), processes=(GpuProcess(9, "trainer"),))
    explanation = explain(view_of(busy, uncuttable_gpu(1)), parse_request(gpus="1", gpu_model="A100"))
    assert [each.kind for each in explanation.remedies] == [RemedyKind.WAIT, RemedyKind.OTHER_MODEL]
    assert explanation.remedies[0].process_ids == (9,)
    assert explanation.remedies[1].text == "omit --gpu-model: GPU 1 (Tesla T4) can serve it now"


def shared_by(view: NodeView, *offered: Sharing) -> NodeView:
    return replace(view, node=replace(view.node, sharing=MachineSharing(frozenset(offered))))


def test_a_share_says_when_it_would_be_a_slice() -> None:
    cut = gpu_on(A100, 0, instances=(slice_at("7g.40gb", 0),))
    view = owned_view(cut, "1a2b")
    view = replace(view, node=replace(view.node, gpus=(cut, uncuttable_gpu(1))))
    explanation = explain(shared_by(view, Sharing.MPS), parse_request(gpu_memory="4G"))
    assert explanation.summary == (
        "--gpu-memory 4G can start now: a share of GPU 1: 3.98 GiB by MPS (memory of each process limited by the driver, "
        "even turns, "
        "faults shared, bandwidth shared); get a slice when 1a2b ends"
    )
    (stronger,) = explanation.remedies
    assert (stronger.kind, stronger.allocation_ids) == (RemedyKind.STRONGER_FENCE, ("1a2b",))


def test_a_share_says_why_it_is_not_by_a_stronger_mechanism() -> None:
    why = {Sharing.MEMORY_LIMITS: "the driver refuses them: Not Supported"}
    means = MachineSharing(frozenset({Sharing.MPS, Sharing.TIME_SLICING}), why)
    view = view_of(uncuttable_gpu())
    view = replace(view, node=replace(view.node, sharing=means))
    assert explain(view, parse_request(gpu_memory="1G")).passed_over == why
    assert explain(view, parse_request(gpu_memory="1G", compute="20")).passed_over == {}, "they keep no ceiling"
    best = replace(view, node=replace(view.node, sharing=MachineSharing(frozenset(Sharing))))
    assert explain(best, parse_request(gpu_memory="1G")).passed_over == {}


def test_a_share_that_nothing_could_replace_says_no_more() -> None:
    view = shared_by(view_of(uncuttable_gpu()), Sharing.MPS)
    assert explain(view, parse_request(gpu="0.2")).remedies == ()
    assert explain(view, parse_request(gpu="0.2", compute="30")).remedies == ()


def test_who_asks_for_too_strong_a_fence_is_told_of_a_weaker_one() -> None:
    view = shared_by(view_of(uncuttable_gpu()), Sharing.MPS, Sharing.TIME_SLICING)
    explanation = explain(view, parse_request(gpu="0.2", isolation="hard"))
    assert explanation.impossible is not None
    (weaker,) = explanation.remedies
    assert weaker.kind is RemedyKind.WEAKER_FENCE
    assert weaker.text.startswith(
        "accept --isolation soft: a share of GPU 0: 2.9 GiB by MPS (memory of each process limited by the driver"
    )
    explanation = explain(shared_by(view, Sharing.TIME_SLICING), parse_request(gpu="0.2"))
    (weaker,) = explanation.remedies
    assert weaker.text.startswith(
        "accept --isolation none: a share of GPU 0: 2.91 GiB by time-slicing (memory not limited"
    )


def test_a_part_waits_for_the_fewest_of_those_who_share_its_gpu() -> None:
    gpu = uncuttable_gpu()
    grants = [FractionalShare(WholeGpu(gpu.uuid), gib * 2**30, Sharing.MEMORY_LIMITS) for gib in (6, 2, 5)]
    allocations = [
        Allocation(name, parse_request(gpu="0.2"), (grant,), Phase.ACTIVE, 0.0)
        for name, grant in zip(("large", "small", "middle"), grants, strict=True)
    ]
    view = shared_by(view_of(gpu, allocations=allocations), Sharing.MEMORY_LIMITS)
    waits = [each for each in explain(view, parse_request(gpu_memory="6Gi")).remedies if each.kind is RemedyKind.WAIT]
    assert [each.text for each in waits] == ["wait for large to end"]
    waits = [each for each in explain(view, parse_request(gpu_memory="3Gi")).remedies if each.kind is RemedyKind.WAIT]
    assert [len(each.allocation_ids) for each in waits] == [1]
