"""Which preemptible commands end for a waiting request: as few as needed, and none without need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.test_backfill import NOW, holding, machine, queue_of
from tests.strategies import node_views, requests_for, sharing_views
from tranche.core.allocation import Allocation, NodeView
from tranche.core.errors import TrancheError
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import parse_request
from tranche.core.state import MigMode
from tranche.core.user_quota import EVERYONE, UserQuota
from tranche.planning.decide.allocate import Granted, Waiting, decide
from tranche.planning.decide.foresee import without
from tranche.planning.decide.preempt import to_preempt
from tranche.planning.decide.queue import WaitingRequest, may_start
from tranche.planning.explain.explanation import explain
from tranche.planning.explain.remedies import RemedyKind

YES = "true"
ONE, BOTH = parse_request(gpus="1"), parse_request(gpus="2")
HUMBLE = parse_request(gpus="1", preemptible=YES)


def begun(view: NodeView) -> NodeView:
    """The view with commands that have started, each with the id of its number and a user of its own."""
    found = (
        each._replace(id=f"a-{number}", keeper=ProcessKeeper(number, number, uid=1000 + number, begun=number))
        for number, each in enumerate(view.allocations, start=1)
    )
    return replace(view, allocations=tuple(found))


def two_held(first: str | None = YES, second: str | None = YES) -> NodeView:
    """Two GPUs, the first held for an hour, the second for ten minutes."""
    view = holding(machine(2), NOW - 3600, gpus="1", **({"preemptible": first} if first else {}))
    return begun(holding(view, NOW - 600, gpus="1", **({"preemptible": second} if second else {})))


def ids(ended: tuple[Allocation, ...]) -> list[str]:
    return [each.id for each in ended]


def test_the_youngest_command_ends_because_it_loses_the_least() -> None:
    assert ids(to_preempt(two_held(), queue_of(ONE), "w-0", NOW)) == ["a-2"]
    assert ids(to_preempt(two_held(second=None), queue_of(ONE), "w-0", NOW)) == ["a-1"]
    assert sorted(ids(to_preempt(two_held(), queue_of(BOTH), "w-0", NOW))) == ["a-1", "a-2"]
    assert to_preempt(two_held(second=None), queue_of(BOTH), "w-0", NOW) == (), "that would not be enough"


def test_one_command_ends_rather_than_several_younger_ones() -> None:
    view = holding(machine(4), NOW - 3600, gpus="2", preemptible=YES)
    for number in range(2):
        view = holding(view, NOW - number, gpus="1", preemptible=YES)
    assert ids(to_preempt(begun(view), queue_of(BOTH), "w-0", NOW)) == ["a-1"]


def test_a_preemptible_request_ends_nothing() -> None:
    assert to_preempt(two_held(), queue_of(HUMBLE), "w-0", NOW) == ()


def test_each_waiter_gets_its_own() -> None:
    waiters = queue_of(ONE, ONE, ONE)
    assert [ids(to_preempt(two_held(), waiters, each.id, NOW)) for each in waiters] == [["a-2"], ["a-1"], []]
    silent = [waiters[0]._replace(silent=True), *waiters[1:]]
    assert [ids(to_preempt(two_held(), silent, each.id, NOW)) for each in waiters[1:]] == [["a-2"], ["a-1"]]


def test_a_request_that_cannot_start_keeps_its_gpus_from_later_ones() -> None:
    """Else a large request would never start while small ones come."""
    assert to_preempt(two_held(second=None), queue_of(BOTH, ONE), "w-1", NOW) == ()


@pytest.mark.parametrize(
    ("left", "ended"), [(600, ["a-2"]), (31, ["a-2"]), (29, []), (-1, []), (-100, []), (-200, ["a-2"])]
)
def test_nothing_ends_for_what_another_command_gives_back_in_a_moment(left: int, ended: list[str]) -> None:
    """Unless that should have ended long ago: then it may stay for ever."""
    view = two_held(first=None)
    first, second = view.allocations
    limited = first._replace(request=replace(first.request, time_limit=3600 + left))
    view = replace(view, allocations=(limited, second))
    assert ids(to_preempt(view, queue_of(ONE), "w-0", NOW)) == ended


def test_a_command_that_has_not_started_is_left_alone() -> None:
    view = two_held()
    first, second = view.allocations
    view = replace(view, allocations=(first, second._replace(keeper=ProcessKeeper(7, 7))))
    assert ids(to_preempt(view, queue_of(ONE), "w-0", NOW)) == ["a-1"]


def test_nothing_ends_for_a_user_beyond_the_quota() -> None:
    held = replace(two_held(), quotas={EVERYONE: UserQuota(gpu_percent=100)})
    first, second = held.allocations
    mine = first._replace(request=ONE, keeper=replace_uid(first, 1))
    waiter = WaitingRequest("w", ONE, uid=1)
    assert to_preempt(replace(held, allocations=(mine, second)), [waiter], "w", NOW) == ()
    assert ids(to_preempt(held, [waiter], "w", NOW)) == ["a-2"]


def replace_uid(allocation: Allocation, uid: int) -> ProcessKeeper:
    keeper = allocation.keeper
    assert isinstance(keeper, ProcessKeeper)
    return keeper._replace(uid=uid)


def test_preemptible_commands_do_not_count_for_their_users_quota() -> None:
    view = replace(two_held(second=None), quotas={EVERYONE: UserQuota(gpu_percent=100)}, asker=1002)
    assert isinstance(decide(replace(view, asker=1002), ONE), Waiting)
    free = begun(holding(machine(3), NOW, gpus="2", preemptible=YES))
    limited = replace(free, quotas={EVERYONE: UserQuota(gpu_percent=100, gpu_hours=0)}, asker=1001)
    assert isinstance(decide(limited, HUMBLE), Granted)
    hours = replace(limited, quotas={EVERYONE: UserQuota(gpu_percent=100)})
    assert isinstance(decide(hours, ONE), Granted), "the two that are preemptible do not count"


def test_slices_and_parts_make_room_for_a_whole_gpu() -> None:
    view = machine(1, mode=MigMode.ENABLED)
    for number in range(7):
        view = holding(view, NOW - number, mig_profile="1g.5gb", preemptible=YES)
    ended = ids(to_preempt(begun(view), queue_of(parse_request(mig_profile="3g.20gb")), "w-0", NOW))
    assert 3 <= len(ended) <= 4
    assert len(to_preempt(begun(view), queue_of(ONE), "w-0", NOW)) == 7


def test_what_is_explained_is_what_would_be_done() -> None:
    view = two_held()
    found = explain(view, ONE, queue_of(HUMBLE), now=NOW).remedies[0]
    assert (found.kind, found.allocation_ids) == (RemedyKind.PREEMPT, ("a-2",))
    assert found.text == "make the request: Tranche then preempts a-2 within 30 s"
    kinds = {each.kind for each in explain(view, HUMBLE, queue_of(ONE), now=NOW).remedies}
    assert RemedyKind.PREEMPT not in kinds


def test_nobody_is_promised_a_start_who_may_be_passed() -> None:
    view = begun(holding(machine(1), NOW, gpus="1", time="1h"))
    for request, promised in ((ONE, True), (HUMBLE, False)):
        waiting = may_start(view, queue_of(request), "w-0", now=NOW)
        assert isinstance(waiting, Waiting)
        assert (waiting.starts_by is not None) is promised


@given(st.data())
def test_only_what_is_needed_ends_and_the_request_starts_then(data: st.DataObject) -> None:
    view = data.draw(node_views() | sharing_views())
    count = len(view.allocations)
    humble = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    view = replace(
        view,
        allocations=tuple(
            each._replace(request=replace(each.request, preemptible=yes))
            for each, yes in zip(view.allocations, humble, strict=True)
        ),
    )
    started = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    view = replace(
        view,
        allocations=tuple(
            each._replace(keeper=each.keeper._replace(begun=5))
            if yes and isinstance(each.keeper, ProcessKeeper)
            else each
            for each, yes in zip(view.allocations, started, strict=True)
        ),
    )
    waiters = queue_of(*data.draw(st.lists(requests_for(view), min_size=1, max_size=3)))
    for waiter in waiters:
        ended = to_preempt(view, waiters, waiter.id, NOW)
        assert all(each.request.preemptible and isinstance(each.keeper, ProcessKeeper) for each in ended)
        assert all(each.keeper.begun for each in ended if isinstance(each.keeper, ProcessKeeper))
    first = waiters[0]
    ended = to_preempt(view, waiters, first.id, NOW)
    if ended:
        assert not starts(view, first)
        assert starts(without(view, set(ids(ended))), first)
        for spared in ended:
            assert not starts(without(view, set(ids(ended)) - {spared.id}), first), f"{spared.id} was not needed"


def starts(view: NodeView, waiter: WaitingRequest) -> bool:
    try:
        return isinstance(decide(view, waiter.request), Granted)
    except TrancheError:
        return False
