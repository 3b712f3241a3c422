"""A request with a time limit may start before earlier ones, and never delays the first of them."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.test_allocate import allocated
from tests.strategies import FAMILY_BOARDS, gpu_on, view_of
from tranche.core.allocation import Allocation, NodeView
from tranche.core.errors import QuotaExceeded, TrancheError
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import Request, parse_request
from tranche.core.state import MigMode
from tranche.core.user_quota import EVERYONE, UserQuota
from tranche.planning.decide.allocate import Granted, Waiting, decide
from tranche.planning.decide.backfill import Foresight
from tranche.planning.decide.foresee import without
from tranche.planning.decide.queue import WaitingRequest, may_start, outlooks, startable
from tranche.planning.decide.recording import (
    RecordedDecision,
    RecordedRequest,
    answer,
    decision_from_dict,
    decision_to_dict,
)
from tranche.planning.decide.time_limits import free_by
from tranche.planning.explain.explanation import explain
from tranche.planning.explain.remedies import RemedyKind

A100 = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")
NOW = 1_000_000.0
MINUTE, HOUR = 60, 3600


def machine(gpus: int, *, mode: MigMode = MigMode.DISABLED) -> NodeView:
    return view_of(*(gpu_on(A100, number, mode=mode, instances=[]) for number in range(gpus)))


def holding(view: NodeView, created: float, **options: str) -> NodeView:
    """The view after the grant of that request at that time."""
    request = parse_request(**options)
    granted = decide(view, request)
    assert isinstance(granted, Granted)
    return given_at(view, request, granted, created)


def given_at(view: NodeView, request: Request, granted: Granted, created: float) -> NodeView:
    after = allocated(view, granted, request)
    *others, new = after.allocations
    return replace(after, allocations=(*others, new._replace(created=created, id=f"a-{len(others)}-{created}")))


def queue_of(*requests: Request) -> list[WaitingRequest]:
    return [WaitingRequest(f"w-{number}", each) for number, each in enumerate(requests)]


BOTH, ONE = parse_request(gpus="2"), parse_request(gpus="1")


@pytest.mark.parametrize(
    ("limit", "starts"), [("30m", True), ("58m", True), ("62m", False), ("5h", False), (None, False)]
)
def test_a_command_passes_the_first_only_if_it_ends_before_that_can_start(limit: str | None, starts: bool) -> None:
    view = holding(machine(2), NOW, gpus="1", time="1h")
    waiters = queue_of(BOTH, parse_request(gpus="1", time=limit))
    assert isinstance(may_start(view, waiters, "w-1", now=NOW + MINUTE), Granted) is starts
    assert list(startable(view, waiters, now=NOW + MINUTE)) == (["w-1"] if starts else [])
    assert (explain(view, waiters[1].request, waiters[:1], now=NOW + MINUTE).granted is not None) is starts
    assert isinstance(may_start(view, waiters, "w-1"), Waiting), "without the time nobody passes"


@pytest.mark.parametrize(("quota", "starts"), [(200, False), (300, True)])
def test_a_users_own_command_does_not_use_up_the_quota_of_the_users_earlier_request(quota: int, starts: bool) -> None:
    view = holding(holding(machine(3), NOW, gpus="1", time="1h"), NOW, gpus="1", time="1h")
    ann = 1001
    waiters = [
        WaitingRequest("first", BOTH, ann),
        WaitingRequest("second", parse_request(gpus="1", time="4h"), ann),
    ]
    view = replace(view, quotas={str(ann): UserQuota(gpu_percent=quota)})
    assert isinstance(may_start(view, waiters, "second", now=NOW + MINUTE), Granted) is starts


@pytest.mark.parametrize(("limit", "starts"), [("5m", True), ("20m", False), (None, False)])
def test_a_command_passes_the_first_that_can_start_once_another_ends_and_a_preemptible_one_is_preempted(
    limit: str | None, starts: bool
) -> None:
    view = holding(holding(machine(4), NOW, gpus="1", time="10m"), NOW, gpus="1", preemptible="true")
    *others, humble = view.allocations
    waiters = queue_of(parse_request(gpus="4"), parse_request(gpus="1", time=limit))
    assert list(startable(view, waiters, now=NOW + MINUTE)) == [], "it has not started, so it may last"
    view = replace(view, allocations=(*others, humble._replace(keeper=ProcessKeeper(7, 7, begun=7))))
    assert list(startable(view, waiters, now=NOW + MINUTE)) == (["w-1"] if starts else [])
    found = may_start(view, waiters, "w-0", now=NOW + MINUTE)
    assert isinstance(found, Waiting)
    assert found.starts_by is None, "a stranger's process may keep the preemptible share in use"


def test_a_promise_does_not_come_to_depend_on_preemption() -> None:
    """The first is told when the two that end leave it enough. A long command on another would take that from it."""
    view = holding(holding(machine(5), NOW, gpus="2", time="10m"), NOW, gpus="1", preemptible="true")
    *others, humble = view.allocations
    view = replace(view, allocations=(*others, humble._replace(keeper=ProcessKeeper(7, 7, begun=7))))
    waiters = queue_of(parse_request(gpus="4"), parse_request(gpus="1", time="5h"))
    assert isinstance(waiting := may_start(view, waiters, "w-0", now=NOW), Waiting)
    assert waiting.starts_by is not None
    assert list(startable(view, waiters, now=NOW)) == []


def test_nobody_passes_a_request_whose_start_is_unknown() -> None:
    unlimited = holding(machine(2), NOW, gpus="1")
    overdue = holding(machine(2), NOW - 2 * HOUR, gpus="1", time="1h")
    for view in (unlimited, overdue):
        waiters = queue_of(BOTH, parse_request(gpus="1", time="1m"))
        assert Foresight(view, NOW).starts_by(BOTH) is None
        assert isinstance(may_start(view, waiters, "w-1", now=NOW), Waiting)


def test_a_long_command_passes_where_the_first_finds_room_beside_it() -> None:
    view = holding(holding(machine(3), NOW, gpus="1", time="1h"), NOW, gpus="1", time="2h")
    two, three = queue_of(BOTH, parse_request(gpus="1", time="9h")), queue_of(parse_request(gpus="3"), ONE)
    assert isinstance(may_start(view, two, "w-1", now=NOW), Waiting)
    assert Foresight(view, NOW).starts_by(BOTH) == NOW + HOUR + 120
    assert Foresight(view, NOW).starts_by(three[0].request) == NOW + 2 * HOUR + 120
    quarter = parse_request(mig_profile="1g.5gb", time="9h")
    beside = holding(machine(2, mode=MigMode.ENABLED), NOW, mig_profile="4g.20gb", time="1h")
    beside = holding(beside, NOW, mig_profile="7g.40gb", time="1h")
    first = parse_request(mig_profile="7g.40gb")
    assert isinstance(may_start(beside, queue_of(first, quarter), "w-1", now=NOW), Granted)


def test_a_request_that_waits_is_told_when_it_starts_at_the_latest() -> None:
    view = holding(holding(machine(2), NOW, gpus="1", time="1h"), NOW, gpus="1", time="2h")
    assert explain(view, ONE, now=NOW).starts_by == NOW + HOUR + 120
    assert explain(view, BOTH, now=NOW).starts_by == NOW + 2 * HOUR + 120
    assert explain(view, BOTH).starts_by is None
    assert explain(view, ONE, queue_of(BOTH), now=NOW).starts_by is None, "others go first"
    assert explain(machine(2), ONE, now=NOW).starts_by is None, "it starts now"
    for quotas in ({EVERYONE: UserQuota(weight=1)}, {"7": UserQuota(gpu_hours=40)}, {"7": UserQuota(gpu_percent=50)}):
        told = explain(replace(view, quotas=quotas, asker=7), ONE, now=NOW)
        assert told.starts_by is None, quotas
    stopped = [WaitingRequest("w-0", BOTH, silent=True)]
    assert explain(view, ONE, stopped, now=NOW).starts_by is None, "it may go on, and then goes first"
    bound = replace(
        view, quotas={"8": UserQuota(shares=1)}, allocations=(_of(view.allocations[0], 8), *view.allocations[1:])
    )
    assert explain(bound, ONE, [WaitingRequest("w-0", ONE, 8)], now=NOW).starts_by is None, (
        "its user may hold less soon"
    )
    members = replace(view, quotas={"@msc": UserQuota(gpu_hours=40)}, groups={"7": ("@msc",)}, asker=7)
    assert explain(members, ONE, now=NOW).starts_by is None, "the group may use up its hours before"


def _of(allocation: Allocation, uid: int) -> Allocation:
    return allocation._replace(keeper=ProcessKeeper(uid=uid))


def test_a_request_that_is_too_long_is_told_which_time_limit_would_do() -> None:
    view = holding(machine(2), NOW, gpus="1", time="1h")
    for asked in (ONE, parse_request(gpus="1", time="5h")):
        remedy = explain(view, asked, queue_of(BOTH), now=NOW + MINUTE).remedies[0]
        assert remedy.kind is RemedyKind.TIME_LIMIT
        assert remedy.request == parse_request(gpus="1", time="59m")
        assert explain(view, remedy.request, queue_of(BOTH), now=NOW + MINUTE).granted
    unlimited = holding(machine(2), NOW, gpus="1")
    assert all(
        each.kind is not RemedyKind.TIME_LIMIT for each in explain(unlimited, ONE, queue_of(BOTH), now=NOW).remedies
    )


def test_a_decision_with_its_time_is_replayed() -> None:
    view = holding(machine(2), NOW, gpus="1", time="1h")
    question = RecordedRequest(view, tuple(queue_of(BOTH, parse_request(gpus="1", time="5m"))), "w-1", now=NOW)
    record = RecordedDecision(NOW, question, answer(question))
    assert isinstance(record.outcome, Granted)
    again = decision_from_dict(decision_to_dict(record))
    assert again == record
    assert answer(again.question) == record.outcome


def earliest(view: NodeView, request: Request, now: float) -> float:
    """When the request can start at the latest: one end after the other, as slow and plain as can be."""
    ends = sorted({free_by(each) for each in view.allocations if free_by(each) < math.inf})
    for end in (-math.inf, *ends):
        try:
            there = without(view, [each.id for each in view.allocations if free_by(each) <= end])
            if isinstance(decide(there, request), Granted):
                return max(end, now)
        except TrancheError:
            return math.inf
    return math.inf


def starts_now(view: NodeView, queue: list[WaitingRequest], now: float) -> bool:
    """Whether the last of the queue starts now."""
    try:
        return isinstance(may_start(view, queue, queue[-1].id, now=now), Granted)
    except TrancheError:
        return False


demands = st.sampled_from(
    [{"gpus": "1"}, {"gpus": "2"}, {"gpus": "3"}]
    + [{"mig_profile": name} for name in ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")]
    + [{"gpu": "0.4"}, {"gpu_memory": "10G"}]
)
limits = st.sampled_from([None, "5m", "20m", "1h", "3h"])


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Request, float, float]:
    """A request, the seconds until it is made, and how long its command runs."""
    limit = draw(limits)
    request = parse_request(**draw(demands), time=limit)
    most = 4 * HOUR if request.time_limit is None else request.time_limit
    return request, draw(st.integers(0, 40)) * MINUTE, draw(st.integers(1, 100)) * most / 100


@given(st.lists(jobs(), min_size=3, max_size=9), st.integers(2, 3))
def test_what_is_promised_to_the_first_never_moves_later(asked: list[tuple[Request, float, float]], gpus: int) -> None:
    view, now, queue = machine(gpus), NOW, list[WaitingRequest]()
    arrivals, running = list(enumerate(asked)), dict[str, float]()
    lengths = {f"j-{number}": length for number, (_, _, length) in enumerate(asked)}
    promised: dict[str, float] = {}
    arriving = NOW
    while arrivals or running:
        due = min(running.values(), default=math.inf)
        if arrivals and arriving + arrivals[0][1][1] <= due:
            number, (request, wait, _) = arrivals.pop(0)
            now = arriving = arriving + wait
            queue.append(WaitingRequest(f"j-{number}", request))
        else:
            now = due
            over = [id for id, end in running.items() if end <= now]
            view = without(view, over)
            running = {id: end for id, end in running.items() if id not in over}
        while queue:
            first = queue[0]
            start = earliest(view, first.request, now)
            assert start <= promised.get(first.id, math.inf), "the promise moved later"
            promised[first.id] = start
            assert (explain(view, queue[-1].request, queue[:-1], now=now).granted is not None) is starts_now(
                view, queue, now
            )
            next_id = next(startable(view, queue, now=now), None)
            if next_id is None:
                break
            waiter = next(each for each in queue if each.id == next_id)
            granted = may_start(view, queue, next_id, now=now)
            assert isinstance(granted, Granted)
            assert now <= promised.get(next_id, math.inf)
            view = given_at(view, waiter.request, granted, now)
            running[view.allocations[-1].id] = now + lengths[next_id]
            queue.remove(waiter)


def test_a_users_quota_gives_a_time_limit_and_refuses_a_longer_one() -> None:
    view = replace(
        holding(machine(2), NOW, gpus="1", time="1h"), quotas={EVERYONE: UserQuota(time_limit=1800)}, asker=7
    )
    waiters = [WaitingRequest("w-0", BOTH, 7), WaitingRequest("w-1", ONE, 7)]
    assert isinstance(may_start(view, waiters, "w-1", now=NOW), Granted)
    assert list(startable(view, waiters, now=NOW)) == ["w-1"]
    explanation = explain(view, ONE, waiters[:1], now=NOW)
    assert explanation.granted
    assert explanation.request.time_limit == 1800
    long = parse_request(gpus="1", time="31m")
    assert isinstance(explain(view, long, now=NOW).impossible, QuotaExceeded)
    late = [WaitingRequest("w-0", long, 7), WaitingRequest("w-1", ONE, 7)]
    with pytest.raises(QuotaExceeded, match="commands can run for at most 30m"):
        may_start(view, late, "w-0", now=NOW)
    assert isinstance(next(outlooks(view, late)), QuotaExceeded)
    assert list(startable(view, late, now=NOW)) == ["w-1"], "it holds nobody up"
    assert isinstance(may_start(view, [WaitingRequest("w-0", long, 0)], "w-0", now=NOW), Granted), "root has no quota"


ANN, BOB, CY = 1001, 1002, 1003


@given(
    st.lists(st.tuples(jobs(), st.sampled_from([ANN, BOB, CY])), min_size=3, max_size=9),
    st.integers(2, 3),
    st.dictionaries(st.sampled_from([str(ANN), str(BOB)]), st.builds(UserQuota, st.integers(50, 300)), max_size=2),
    st.randoms(use_true_random=False),
)
def test_no_one_who_is_told_a_start_waits_longer_whoever_is_stopped_or_beyond_a_quota(
    asked: list[tuple[tuple[Request, float, float], int]], gpus: int, quotas: dict[str, UserQuota], rng: Random
) -> None:
    """Preemptible commands count as such where they are in nobody's way, but here each is beside a stranger and never ends."""
    asked = [((replace(job[0], preemptible=rng.random() < 0.3), *job[1:]), uid) for job, uid in asked]
    view, now, queue = replace(machine(gpus), quotas=quotas), NOW, list[WaitingRequest]()
    arrivals, running, promised = list(enumerate(asked)), dict[str, float](), dict[str, float]()
    lengths = {f"j-{number}": length for number, ((_, _, length), _) in enumerate(asked)}
    arriving = NOW
    while arrivals or running:
        due = min(running.values(), default=math.inf)
        if arrivals and arriving + arrivals[0][1][0][1] <= due:
            number, ((request, wait, _), uid) = arrivals.pop(0)
            now = arriving = arriving + wait
            queue.append(WaitingRequest(f"j-{number}", request, uid))
        else:
            now = due
            over = [id for id, end in running.items() if end <= now]
            view = without(view, over)
            running = {id: end for id, end in running.items() if id not in over}
        queue.sort(key=lambda each: each.request.preemptible)
        queue = [each._replace(silent=rng.random() < 0.2) for each in queue]
        while (next_id := next(startable(view, queue, now=now), None)) is not None:
            waiter = next(each for each in queue if each.id == next_id)
            granted = may_start(view, queue, next_id, now=now)
            assert isinstance(granted, Granted)
            assert not waiter.silent
            assert now <= promised.get(next_id, math.inf)
            view = given_at(view, waiter.request, granted, now)
            *others, new = view.allocations
            view = replace(view, allocations=(*others, new._replace(keeper=ProcessKeeper(uid=waiter.uid, begun=1))))
            running[new.id] = now + lengths[next_id]
            queue.remove(waiter)
        for number, each in enumerate(queue):
            told = explain(replace(view, asker=each.uid), each.request, queue[:number], now=now).starts_by
            if each.silent:
                promised.pop(each.id, None)  # the promise of one who does not answer is void
            elif told is not None or each.id in promised:
                assert told is not None, f"{each.id} was promised {promised[each.id]}"
                assert told <= promised.get(each.id, math.inf)
                promised[each.id] = told
