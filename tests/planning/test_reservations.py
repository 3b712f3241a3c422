"""Reservations: never closed to their own users inside, never open to others beyond their start, and never moving a promise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.test_backfill import (
    BOTH,
    HOUR,
    MINUTE,
    NOW,
    ONE,
    given_at,
    holding,
    jobs,
    limits,
    machine,
    starts_now,
)
from tranche.core.allocation import Allocation, NodeView, WholeGpu
from tranche.core.errors import NoRoom
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import Request, parse_request
from tranche.core.reservation import GIVEN_UP_SECONDS, Reservation
from tranche.core.user_quota import EVERYONE, UserQuota
from tranche.planning.decide.allocate import Granted, Waiting, decide
from tranche.planning.decide.foresee import without
from tranche.planning.decide.obstacle import Reason
from tranche.planning.decide.queue import WaitingRequest, may_start, outlooks, startable
from tranche.planning.decide.recording import view_from_dict, view_to_dict
from tranche.planning.decide.reservation_choice import choose, in_the_way
from tranche.planning.decide.reservations import closing, first_used, over
from tranche.planning.decide.time_limits import free_at
from tranche.planning.explain.explanation import explain
from tranche.planning.explain.remedies import RemedyKind
from tranche.planning.steps.plan import apply

ANN, BOB, CY = 1001, 1002, 1003
STUDENTS = "@students"
BEGINS, ENDS = NOW + 4 * HOUR, NOW + 6 * HOUR


def reserved(
    view: NodeView, *indexes: int, begins: float = BEGINS, ends: float = ENDS, users: tuple[str, ...] = (str(ANN),)
) -> NodeView:
    """The view with one more reservation of those GPUs."""
    uuids = tuple(view.node.gpus[index].uuid for index in indexes)
    new = Reservation(f"r{len(view.reservations)}", uuids, begins, ends, users, "ann" if users else "", "root")
    return replace(view, reservations=tuple(sorted((*view.reservations, new), key=lambda each: each.begins)))


def starts(view: NodeView, request: Request, uid: int, now: float) -> bool:
    return isinstance(may_start(view, [WaitingRequest("w", request, uid)], "w", now=now), Granted)


def of(view: NodeView, uid: int) -> NodeView:
    """The view in which the last allocation is that user's."""
    *others, last = view.allocations
    return replace(view, allocations=(*others, last._replace(keeper=ProcessKeeper(uid=uid))))


@pytest.mark.parametrize(
    ("uid", "limit", "now", "free"),
    [
        (BOB, None, NOW, False),
        (BOB, "3h58m", NOW, True),
        (BOB, "3h58m1s", NOW, False),
        (ANN, None, NOW, False),
        (ANN, "1h", NOW, True),
        (BOB, "1m", BEGINS - 179, False),
        (BOB, "1m", BEGINS - 180, True),
        (BOB, "1s", BEGINS, False),
        (ANN, None, BEGINS - 1, False),
        (ANN, None, BEGINS, True),
        (ANN, "9h", ENDS - 1, True),
        (BOB, "1s", BEGINS + GIVEN_UP_SECONDS - 1, False),
        (BOB, None, BEGINS + GIVEN_UP_SECONDS, True),
        (BOB, None, ENDS, True),
    ],
)
def test_a_gpu_is_closed_exactly_as_promised(uid: int, limit: str | None, now: float, free: bool) -> None:
    view = reserved(machine(1), 0)
    for options in ({"gpus": "1"}, {"mig_profile": "1g.5gb"}, {"gpu": "0.3"}):
        request = parse_request(**options, time=limit)
        assert starts(view, request, uid, now) is free
        assert (explain(replace(view, asker=uid), request, now=now).granted is not None) is free


def test_a_reservation_for_nobody_closes_the_gpu_until_it_is_over() -> None:
    view = reserved(machine(1), 0, users=())
    for uid in (0, ANN, -1):
        assert not starts(view, ONE, uid, BEGINS + 2 * GIVEN_UP_SECONDS)
        assert starts(view, ONE, uid, ENDS)


def test_members_of_a_group_start_and_the_own_limit_of_a_quota_counts() -> None:
    view = replace(reserved(machine(1), 0, users=(STUDENTS,)), groups={str(BOB): (STUDENTS,)})
    assert [starts(view, ONE, uid, BEGINS) for uid in (ANN, BOB)] == [False, True]
    limited = replace(view, quotas={EVERYONE: UserQuota(time_limit=HOUR)})
    assert starts(limited, ONE, ANN, NOW)
    assert not isinstance(next(outlooks(replace(limited, time=NOW), [WaitingRequest("w", ONE, ANN)])), Waiting)
    assert isinstance(next(outlooks(replace(view, time=NOW), [WaitingRequest("w", ONE, ANN)])), Waiting)


def test_whoever_waits_for_a_reservation_does_not_hold_up_its_users_nor_shorter_commands() -> None:
    view = reserved(machine(1), 0)
    bob = WaitingRequest("bob", ONE, BOB)
    assert list(startable(view, [bob, WaitingRequest("ann", ONE, ANN)], now=BEGINS)) == ["ann"]
    short = WaitingRequest("cy", parse_request(gpus="1", time="1h"), CY)
    assert list(startable(view, [bob, short], now=NOW)) == ["cy"]
    assert isinstance(may_start(view, [bob, short], "cy", now=NOW), Granted)
    both = WaitingRequest("both", BOTH, BOB)
    two = reserved(machine(2), 0)
    assert list(startable(two, [both, WaitingRequest("cy", ONE, CY)], now=NOW)) == [], "the other GPU is kept for both"


def test_the_reason_and_the_remedies_name_the_reservation_and_the_limit_that_would_do() -> None:
    view = replace(reserved(machine(2), 0, 1), asker=BOB)
    told = explain(view, ONE, now=NOW)
    (text,) = {each.text for each in told.answers.obstacles}
    assert {each.reason for each in told.answers.obstacles} == {Reason.RESERVED}
    assert text.startswith("reserved for ann from ")
    assert text.endswith("; with --time 3h or less, a command can start before it")
    remedy = told.remedies[0]
    assert (remedy.kind, remedy.request) == (RemedyKind.TIME_LIMIT, parse_request(gpus="1", time="3h58m"))
    assert remedy.request is not None
    assert explain(view, remedy.request, now=NOW).granted
    own = explain(replace(view, asker=ANN), replace(ONE, time_limit=None), now=NOW)
    assert any(each.text.startswith("wait until your reservation begins: reserved for ann") for each in own.remedies)
    begun = explain(view, ONE, now=BEGINS)
    assert [each.kind for each in begun.remedies] == [RemedyKind.WAIT]
    assert begun.remedies[0].text.startswith("wait until a reservation is over: reserved for ann")
    assert "--time" not in begun.answers.obstacles[0].text


def test_a_new_reservation_moves_the_promised_start() -> None:
    view = replace(holding(machine(1), NOW, gpus="1", time="3h"), asker=BOB)
    two_hours = parse_request(gpus="1", time="2h")
    assert explain(view, two_hours, now=NOW).starts_by == NOW + 3 * HOUR + 120
    assert explain(reserved(view, 0, users=()), two_hours, now=NOW).starts_by == ENDS
    assert explain(reserved(view, 0), two_hours, now=NOW).starts_by is None, "ann may use it for ever"
    assert explain(replace(reserved(view, 0), asker=ANN), two_hours, now=NOW).starts_by == BEGINS


def test_a_reservation_is_given_up_only_while_none_of_its_users_has_held_its_gpus() -> None:
    late = BEGINS + GIVEN_UP_SECONDS
    view = reserved(machine(2), 0)
    (it,) = view.reservations
    assert not over(replace(view, time=late - 1), it)
    assert over(replace(view, time=late), it)
    assert not over(replace(view, time=late), it._replace(used=True))
    mine = reserved(of(holding(machine(2), NOW, gpus="1"), ANN), 0)
    assert not over(replace(mine, time=late), it)
    assert [*first_used(replace(mine, time=late))] == [it]
    assert [*first_used(replace(mine, time=BEGINS - 1))] == [], "it has not begun"
    assert over(replace(of(mine, BOB), time=late), it)
    elsewhere = mine.allocations[0]._replace(grants=(WholeGpu(view.node.gpus[1].uuid),))
    assert over(replace(mine, allocations=(elsewhere,), time=late), it)
    grants = (WholeGpu(view.node.gpus[0].uuid),)
    assert [[*first_used(replace(view, time=BEGINS, asker=uid), grants)] for uid in (ANN, BOB)] == [[it], []]


def test_a_clock_that_goes_back_neither_ends_nor_opens_a_reservation() -> None:
    view = reserved(machine(1), 0)
    it = view.reservations[0]._replace(used=True)
    view = replace(view, reservations=(it,))
    for now in (BEGINS + 1000, BEGINS - 60, NOW):
        assert not over(replace(view, time=now), it)
        assert not starts(view, ONE, BOB, now)


def test_the_gpus_that_are_free_first_are_chosen_then_the_emptiest() -> None:
    view = holding(holding(holding(machine(4), NOW, gpus="1"), NOW, gpus="1", time="2h"), NOW, gpus="1", time="1h")
    assert [gpu.index for gpu in choose(view, 1, BEGINS, ENDS)] == [3], "it is empty"
    assert [gpu.index for gpu in choose(view, 3, BEGINS, ENDS)] == [1, 2, 3]
    assert [gpu.index for gpu in choose(view, 2, NOW + 600, ENDS)] == [2, 3], "its command ends first"
    uuids = {view.node.gpus[0].uuid}
    assert [gpu.index for gpu in choose(view, 1, BEGINS, ENDS, uuids)] == [0]
    decision = decide(machine(2), parse_request(mig_profile="1g.5gb"))
    assert isinstance(decision, Granted)
    of_another_tool = replace(apply(decision.plan, machine(2)), owned=frozenset())
    (used,) = (gpu.index for gpu in of_another_tool.node if gpu.instances)
    assert [gpu.index for gpu in choose(of_another_tool, 1, BEGINS, ENDS)] == [1 - used]
    other = reserved(view, 1, 2, 3)
    for begins, ends in ((BEGINS - 1, BEGINS + 1), (BEGINS, ENDS), (ENDS - 1, ENDS + 1)):
        assert [gpu.index for gpu in choose(other, 1, begins, ends)] == [0]
        with pytest.raises(
            NoRoom, match=r"2 GPUs were requested, but only 1 GPU can be reserved .* GPU 1 is already res"
        ):
            choose(other, 2, begins, ends)
    for begins, ends in ((NOW + 60, BEGINS), (ENDS, ENDS + 60)):
        assert len(choose(other, 4, begins, ends)) == 4
        assert [gpu.index for gpu in choose(reserved(view, 2), 1, begins, ends)] == [3], (
            "the other's users need a limit"
        )


def test_those_who_may_be_in_the_way_are_named_with_their_ends() -> None:
    view = holding(machine(4), NOW, gpus="1")
    view = of(view, BOB)
    view = of(holding(view, NOW, gpus="1", time="1h"), BOB)
    view = of(holding(view, NOW, gpus="1", time="5h"), CY)
    view = of(holding(view, NOW, gpus="1"), ANN)
    (new,) = reserved(view, 0, 1, 2, 3).reservations
    assert [free for _, free in in_the_way(view, new)] == [math.inf, NOW + 5 * HOUR + 120]


def test_a_recorded_view_keeps_reservations() -> None:
    view = replace(reserved(machine(2), 0, 1), time=NOW)
    assert view_from_dict(view_to_dict(view)) == view


times = st.integers(0, 12 * 60).map(lambda minutes: NOW + minutes * MINUTE)
spans = st.tuples(times, st.integers(1, 300)).map(lambda each: (each[0], each[0] + each[1] * MINUTE))


@st.composite
def booked(draw: st.DrawFn, gpus: int = 2) -> NodeView:
    """An empty machine with a few reservations that do not overlap."""
    view = replace(machine(gpus), groups={str(BOB): (STUDENTS,)})
    for index, (begins, ends) in draw(st.lists(st.tuples(st.integers(0, gpus - 1), spans), max_size=5)):
        uuid = view.node.gpus[index].uuid
        there = [each for each in view.reservations if uuid in each.gpu_uuids]
        if all(each.ends <= begins or ends <= each.begins for each in there):
            users = draw(st.sampled_from([(), (str(ANN),), (STUDENTS,), (str(ANN), str(CY))]))
            view = reserved(view, index, begins=begins, ends=ends, users=users)
    return view


@given(booked(), st.sampled_from([ANN, BOB, CY, 0, -1]), limits, times)
def test_the_rule_closes_a_gpu_exactly_where_the_reservations_say_so(
    view: NodeView, uid: int, limit: str | None, now: float
) -> None:
    request = parse_request(gpus="1", time=limit)
    until = free_at(request, now)
    view = replace(view, asker=uid, time=now)
    names = {str(uid), *view.groups.get(str(uid), ())}
    for gpu in view.node:
        here = [each for each in view.reservations if gpu.uuid in each.gpu_uuids and not over(view, each)]
        closed = closing(view, gpu.uuid, until)
        inside = [each for each in here if each.begins <= now < each.ends]
        ahead = [each for each in here if now < each.begins < until]
        if any(names & set(each.users) for each in inside) and not ahead:
            assert closed is None
        if ahead or any(not names & set(each.users) for each in inside):
            assert closed is not None
        if not inside and not ahead:
            assert closed is None
    assert starts(view, request, uid, now) is any(closing(view, gpu.uuid, until) is None for gpu in view.node)


@given(booked(), st.lists(st.tuples(jobs(), st.sampled_from([ANN, BOB, CY])), min_size=2, max_size=7))
def test_no_one_starts_where_others_have_reserved_and_no_promise_moves_later(
    view: NodeView, asked: list[tuple[tuple[Request, float, float], int]]
) -> None:
    now, queue = NOW, list[WaitingRequest]()
    arrivals, running, promised = list(enumerate(asked)), dict[str, float](), dict[str, float]()
    lengths = {f"j-{number}": length for number, ((_, _, length), _) in enumerate(asked)}
    bounds = sorted({time for each in view.reservations for time in (each.begins, each.ends)})
    arriving = NOW
    while arrivals or running or (queue and any(time > now for time in bounds)):
        due = min([*running.values(), *(time for time in bounds if time > now)], default=math.inf)
        if arrivals and arriving + arrivals[0][1][0][1] <= due:
            number, ((request, wait, _), uid) = arrivals.pop(0)
            now = arriving = arriving + wait
            queue.append(WaitingRequest(f"j-{number}", request, uid))
        else:
            now = due
            over_ids = [id for id, end in running.items() if end <= now]
            view = without(view, over_ids)
            running = {id: end for id, end in running.items() if id not in over_ids}
        view = replace(view, time=now)
        used = {each.id for each in first_used(view)}
        view = replace(
            view, reservations=tuple(each._replace(used=each.used or each.id in used) for each in view.reservations)
        )
        for number, each in enumerate(queue):
            fits = explain(replace(view, asker=each.uid), each.request, queue[:number], now=now).granted is not None
            assert fits is starts_now(view, queue[: number + 1], now)
        while (next_id := next(startable(view, queue, now=now), None)) is not None:
            waiter = next(each for each in queue if each.id == next_id)
            granted = may_start(view, queue, next_id, now=now)
            assert isinstance(granted, Granted)
            assert now <= promised.get(next_id, math.inf)
            view = of(given_at(view, waiter.request, granted, now), waiter.uid)
            refuse_trespass(view, view.allocations[-1], now)
            running[view.allocations[-1].id] = now + lengths[next_id]
            queue.remove(waiter)
        if queue:
            first = queue[0]
            told = explain(replace(view, asker=first.uid), first.request, now=now).starts_by
            if told is not None or first.id in promised:
                assert told is not None, f"{first.id} was promised {promised[first.id]}"
                assert told <= promised.get(first.id, math.inf)
                promised[first.id] = told


def refuse_trespass(view: NodeView, new: Allocation, now: float) -> None:
    """The plain promise, in other words than the rule's."""
    assert isinstance(new.keeper, ProcessKeeper)
    names = {str(new.keeper.uid), *view.groups.get(str(new.keeper.uid), ())}
    limit = new.request.time_limit
    for each in view.reservations:
        mine = {grant.gpu_uuid for grant in new.grants} & set(each.gpu_uuids)
        if mine and now < each.ends and not over(view, each):
            ends_before = limit is not None and now + limit < each.begins
            assert ends_before or (each.begins <= now and names & set(each.users))
