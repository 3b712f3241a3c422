"""The indexed view: it decides what a plain scan of every GPU decides, at first and after every change that it is told of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from bench.plain_scan import decide_by_scan, reserved_by_scan
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import (
    FAMILY_BOARDS,
    gpu_on,
    node_views,
    repeated,
    requests_for,
    sharing_views,
    uncuttable_gpu,
    view_of,
)
from tranche.core.allocation import Allocation, NodeView, Phase, WholeGpu
from tranche.core.errors import AllocationUnknown, GpuNotFound, TrancheError
from tranche.core.quantity import GIB
from tranche.core.request import Request, parse_request
from tranche.core.sharing import Sharing
from tranche.core.state import GpuProcess, GpuState
from tranche.planning.allocate import Decision, Granted, Waiting, decide
from tranche.planning.answers import Terms, best_option, option_at, ranking_of
from tranche.planning.candidates import Candidate
from tranche.planning.effect import apply
from tranche.planning.foresee import without
from tranche.planning.indexed_view import IndexedView
from tranche.planning.options import Freedom
from tranche.planning.part_wish import PartWay, PartWish
from tranche.planning.policy import POLICIES, Policy
from tranche.planning.queue import WaitingRequest, may_start, outlooks, reserved_for, startable
from tranche.planning.situation import kind_of
from tranche.planning.tenancy import tenancy

A100 = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")
policies = st.sampled_from(list(POLICIES.values()))
wishes = st.builds(
    lambda sharings, memory, compute, inside: PartWish(
        tuple(PartWay(each, memory) for each in Sharing if each in sharings), compute, 3, inside, memory
    ),
    st.sets(st.sampled_from(Sharing), min_size=1),
    st.integers(1, 20).map(lambda gib: gib * GIB),
    st.none() | st.integers(1, 100),
    st.booleans(),
)


@st.composite
def fleets(draw: st.DrawFn) -> NodeView:
    """Up to nine GPUs with trouble of every sort; some have twins that differ in one thing or in nothing."""
    view = draw(node_views(max_gpus=3) | sharing_views(max_gpus=3))
    gpus, owned, allocations = list(view.node.gpus), set(view.owned), list(view.allocations)
    for gpu in view.node:
        for difference in draw(
            st.lists(st.sampled_from(["", "order", "process", "gone", "owner", "empty"]), max_size=2)
        ):
            index = len(gpus)
            twin = replace(gpu, uuid=f"{gpu.uuid}-{index}", index=index)
            mine = {key for key in view.owned if key.gpu_uuid == gpu.uuid}
            if draw(st.booleans()):
                allocations += [_moved(each, twin) for each in view.allocations if each.grants[0].gpu_uuid == gpu.uuid]
            if difference == "process":
                twin = replace(twin, processes=(GpuProcess(9_000 + index, "monitor"),))
            elif difference == "order":
                twin = replace(twin, instances=twin.instances[::-1])
            elif gpu.instances:
                one = draw(st.sampled_from(gpu.instances))
                others = tuple(each for each in gpu.instances if each is not one)
                if difference == "gone":
                    twin = replace(twin, instances=others)
                elif difference == "owner":
                    mine ^= {gpu.key(one)}
                elif difference == "empty":
                    twin = replace(twin, instances=(*others, replace(one, compute_instances=())))
            gpus.append(twin)
            owned |= {replace(key, gpu_uuid=twin.uuid) for key in mine}
    node = replace(view.node, gpus=tuple(gpus))
    uses = {gpu.uuid: view.use_of(gpu.uuid[:40]) for gpu in gpus} if view.uses else {}
    return replace(view, node=node, owned=frozenset(owned), allocations=tuple(allocations), uses=uses)


def _moved(allocation: Allocation, gpu: GpuState) -> Allocation:
    grants = tuple(grant.moved_to(gpu.uuid) for grant in allocation.grants)
    return replace(allocation, id=f"{allocation.id}-{gpu.index}", grants=grants)


def outcome(decision: Callable[[], Decision]) -> Decision | tuple[object, ...]:
    """What a decision is, or the words of its refusal."""
    try:
        return decision()
    except TrancheError as error:
        return type(error), error.message, error.hint


def queue_of(requests: Sequence[Request]) -> list[WaitingRequest]:
    return [WaitingRequest(f"w-{number}", request) for number, request in enumerate(requests)]


@given(st.data(), policies, st.booleans())
def test_it_decides_as_a_plain_scan(data: st.DataObject, policy: Policy, foreign: bool) -> None:
    view = data.draw(fleets())
    index = IndexedView(view)
    for request in data.draw(st.lists(requests_for(view), min_size=1, max_size=4)):
        waiters = queue_of(data.draw(st.lists(requests_for(view), max_size=2)))
        terms: dict[str, Any] = {"policy": policy, "adopt_foreign_destroy": foreign}
        looked_up = partial(decide, index, request, reserved=reserved_for(index, waiters), **terms)
        scanned = partial(decide_by_scan, view, request, reserved=reserved_by_scan(view, waiters), **terms)
        assert outcome(looked_up) == outcome(scanned)


@given(fleets(), st.data(), policies, st.booleans(), st.booleans())
def test_every_gpu_is_ranked_by_its_own_best_option(
    view: NodeView, data: st.DataObject, policy: Policy, foreign: bool, thrifty: bool
) -> None:
    index, terms = IndexedView(view), Terms(Freedom(foreign), policy, thrifty)
    for kind in index.kinds:
        profiles = [profile for profile in kind.profiles if profile.starts]
        for profile in (None, *(data.draw(st.lists(st.sampled_from(profiles), max_size=4)) if profiles else ())):
            whole = profile is None or profile.size == kind.memory_slices
            answer = Candidate(profile, whole, data.draw(st.none() | wishes))
            own = {}
            for place, here in enumerate(tenancy(view, gpu) for gpu in view.node):
                if kind_of(here.gpu, view.use_of(here.gpu.uuid)) is kind and here.gpu.uuid not in view.changing:
                    best = best_option(here, answer, terms)
                    if best is not None:
                        own[place] = best
            ranking = ranking_of(index, kind, answer, terms)
            assert ranking.best(len(index)) == sorted((preference, place) for place, (preference, _) in own.items())
            for place, (_, option) in own.items():
                assert option_at(index, place, answer, ranking, terms) == option


@given(st.data())
def test_it_decides_so_after_every_change(data: st.DataObject) -> None:
    """One index is told what changes and asked again and again; a view that is made anew each time is scanned beside it."""
    view = data.draw(fleets())
    index = IndexedView(view)
    adopt = data.draw(st.booleans())
    for number in range(data.draw(st.integers(1, 12))):
        view = data.draw(st.sampled_from([_serve, _release, _observe, _mark, _own]))(data, view, index, number)
        assert index.view == view
        request = data.draw(requests_for(view))
        looked_up = outcome(partial(decide, index, request, adopt_foreign_destroy=adopt))
        assert looked_up == outcome(partial(decide_by_scan, view, request, adopt_foreign_destroy=adopt))
    assert tuple(index.at(place)[0] for place in range(len(index))) == tuple(tenancy(view, gpu) for gpu in view.node)


def _serve(data: st.DataObject, view: NodeView, index: IndexedView, number: int) -> NodeView:
    request = data.draw(requests_for(view))
    try:
        decision = decide(index, request)
    except TrancheError:
        return view
    if not isinstance(decision, Granted):
        return view
    if data.draw(st.booleans()):
        index.carry_out(decision.plan)
        view = apply(decision.plan, view)
    allocation = Allocation(f"new-{number}", request, decision.grants, Phase.PREPARING, 0.0)
    index.promise(allocation)
    return replace(view, allocations=(*view.allocations, allocation))


def _release(data: st.DataObject, view: NodeView, index: IndexedView, number: int) -> NodeView:
    if not view.allocations:
        return view
    gone = data.draw(st.sampled_from(view.allocations))
    index.release(gone.id)
    return replace(view, allocations=tuple(each for each in view.allocations if each is not gone))


def _observe(data: st.DataObject, view: NodeView, index: IndexedView, number: int) -> NodeView:
    """A GPU is lost, comes back, is another than was thought, or everything that ran on it has ended."""
    place = data.draw(st.integers(0, len(view.node.gpus) - 1))
    gpu = view.node.gpus[place]
    what = data.draw(st.sampled_from(["lost", "another", "ended"]))
    if what == "lost":
        gpu = replace(gpu, lost=not gpu.lost)
    elif what == "another":
        gpu = replace(gpu, memory=gpu.memory // 2, name=f"{gpu.name} Half")
    else:
        pids = [process.pid for process in gpu.all_processes]
        gpu = without(NodeView(replace(view.node, gpus=(gpu,))), [], pids).node.gpus[0]
    index.observe(gpu)
    return _with(view, place, gpu)


def _mark(data: st.DataObject, view: NodeView, index: IndexedView, number: int) -> NodeView:
    gpu = data.draw(st.sampled_from(view.node.gpus))
    if gpu.uuid in view.changing:
        index.end_change(gpu.uuid)
    else:
        index.begin_change(gpu.uuid)
    return replace(view, changing=view.changing ^ {gpu.uuid})


def _own(data: st.DataObject, view: NodeView, index: IndexedView, number: int) -> NodeView:
    keys = [gpu.key(instance) for gpu in view.node for instance in gpu.instances]
    if not keys:
        return view
    key = data.draw(st.sampled_from(keys))
    if key in view.owned:
        index.disown([key])
    else:
        index.own([key])
    return replace(view, owned=view.owned ^ {key})


def _with(view: NodeView, place: int, gpu: GpuState) -> NodeView:
    gpus = (*view.node.gpus[:place], gpu, *view.node.gpus[place + 1 :])
    return replace(view, node=replace(view.node, gpus=gpus))


@given(st.data())
def test_the_queue_is_served_as_by_a_plain_scan(data: st.DataObject) -> None:
    view = data.draw(fleets())
    waiters = queue_of(data.draw(st.lists(requests_for(view), min_size=1, max_size=6)))
    may: list[str] = []
    for position, waiter in enumerate(waiters):
        reserved = reserved_by_scan(view, waiters[:position])
        expected = outcome(partial(decide_by_scan, view, waiter.request, reserved=reserved))
        assert outcome(partial(may_start, view, waiters, waiter.id)) == expected
        if isinstance(expected, Granted):
            may.append(waiter.id)
    assert list(startable(view, waiters)) == may
    for waiter, outlook in zip(waiters, outlooks(view, waiters), strict=True):
        alone = outcome(partial(may_start, view, waiters, waiter.id))
        assert alone == (
            (type(outlook), outlook.message, outlook.hint) if isinstance(outlook, TrancheError) else outlook
        )


@given(st.data(), st.integers(17, 40))
def test_on_a_large_machine_it_grants_the_same_and_counts_every_gpu_that_is_in_the_way(
    data: st.DataObject, gpus: int
) -> None:
    view = repeated(data.draw(node_views()), gpus)
    request = data.draw(requests_for(view))
    found, expected = outcome(partial(decide, view, request)), outcome(partial(decide_by_scan, view, request))
    if not isinstance(expected, Waiting):
        assert found == expected
        return
    assert isinstance(found, Waiting)
    assert len(found.obstacles) <= 16
    assert sum(1 + each.alike for each in found.obstacles) + found.unnamed == len(expected.obstacles)
    by_gpu = {each.gpu_uuid: each for each in expected.obstacles}
    for each in found.obstacles:
        assert by_gpu[each.gpu_uuid] == replace(each, alike=0)
        assert each.alike <= sum(other.likeness == each.likeness for other in expected.obstacles) - 1


def test_a_full_machine_of_many_gpus_is_told_in_one_line() -> None:
    view = view_of(*(gpu_on(A100, index) for index in range(100)))
    held = tuple(
        Allocation(f"a-{gpu.index}", parse_request(gpus="1"), (WholeGpu(gpu.uuid),), Phase.ACTIVE, 0.0)
        for gpu in view.node
    )
    decision = decide(replace(view, allocations=held), parse_request(mig_profile="1g.5gb"))
    assert isinstance(decision, Waiting)
    assert decision.reasons == ("GPU 0: held whole by a-0 (and 99 more GPUs like it)",)


def test_obstacles_that_are_not_alike_are_named_up_to_a_number_and_the_rest_is_counted() -> None:
    small = [uncuttable_gpu(index, memory=(index + 1) * GIB) for index in range(20)]
    large = uncuttable_gpu(20, memory=80 * GIB)
    held = Allocation("a-1", parse_request(gpus="1"), (WholeGpu(large.uuid),), Phase.ACTIVE, 0.0)
    decision = decide(view_of(*small, large, allocations=[held]), parse_request(gpu_memory="70Gi"))
    assert isinstance(decision, Waiting)
    assert [each.gpu_index for each in decision.obstacles] == list(range(16))
    assert decision.unnamed == 5
    assert decision.reasons[-1] == "and 5 more GPUs"


def test_very_many_waiters_are_looked_at_once_for_each_different_request() -> None:
    view = view_of(gpu_on(A100, 0), gpu_on(A100, 1))
    requests = [parse_request(mig_profile=name) for name in ("7g.40gb", "1g.5gb", "2g.10gb")]
    waiters = queue_of([requests[number % 3] for number in range(10_000)])
    assert list(startable(view, waiters)) == ["w-0"]
    assert isinstance(may_start(view, waiters, "w-9999"), Waiting)


def test_rankings_outlive_more_changes_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranche.planning.indexed_view._MOVES_KEPT", 7)
    view = view_of(*(gpu_on(A100, index) for index in range(3)))
    index = IndexedView(view)
    request = parse_request(mig_profile="2g.10gb")
    for number in range(60):
        decision = decide(index, request)
        assert decision == decide_by_scan(index.view, request)
        if isinstance(decision, Granted):
            index.promise(Allocation(str(number), request, decision.grants, Phase.ACTIVE, 0.0))
        else:
            for allocation in index.view.allocations[::2]:
                index.release(allocation.id)


def test_an_allocation_may_change_and_may_lie_on_a_gpu_that_is_not_there() -> None:
    one, other = gpu_on(A100), gpu_on(A100, 1)
    index = IndexedView(view_of(one, other))
    away = Allocation("a-1", parse_request(gpus="1"), (WholeGpu("GPU-gone"),), Phase.PREPARING, 0.0)
    there, moved = (replace(away, grants=(WholeGpu(gpu.uuid),)) for gpu in (one, other))
    for allocation, whole in ((away, ((), ())), (there, ((there,), ())), (moved, ((), (moved,)))):
        index.promise(allocation)
        assert index.view.allocations == (allocation,)
        assert (index.at(0)[0].whole, index.at(1)[0].whole) == whole


def test_what_is_not_there_is_an_error() -> None:
    index = IndexedView(view_of(gpu_on(A100)))
    with pytest.raises(AllocationUnknown, match="a-1"):
        index.release("a-1")
    with pytest.raises(GpuNotFound, match="GPU-9"):
        index.begin_change("GPU-9")
