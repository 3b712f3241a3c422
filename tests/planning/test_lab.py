"""Days of a lab, in simulated time: a fair queue gives users their part of the GPUs, and nobody exceeds a limit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest

from tests.strategies import FAMILY_BOARDS, gpu_on, view_of
from tests.support.length import LONG
from tranche.core.allocation import WHOLE, Allocation, NodeView, Phase, size_of
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import Request, parse_request
from tranche.core.state import MigMode
from tranche.core.usage import DAY_SECONDS, DayUsage, recent_use, usage_of, weighed_use, with_running
from tranche.core.user_quota import EVERYONE, UserQuota
from tranche.planning.decide.allocate import Granted
from tranche.planning.decide.fairness import FairOrder
from tranche.planning.decide.foresee import without
from tranche.planning.decide.queue import WaitingRequest, may_start, startable
from tranche.planning.steps.plan import apply

H100 = next(board for board in FAMILY_BOARDS if board.key == "H100-80GB-SXM")
START = 20_000.0 * DAY_SECONDS
HOUR = 3600.0
PHD, MSC = range(2001, 2011), range(3001, 3016)
LIMITED, BUSY = 1001, 1002
QUOTAS = {
    EVERYONE: UserQuota(gpu_percent=400, weight=1),
    "@phd": UserQuota(weight=3),
    "@msc": UserQuota(weight=1, gpu_percent=350),
    str(LIMITED): UserQuota(gpu_percent=100, shares=3),
    str(BUSY): UserQuota(gpu_hours=10),
}
GROUPS = {**dict.fromkeys(PHD, "@phd"), **dict.fromkeys(MSC, "@msc")}
SIZES = [{"gpus": "1"}, {"gpus": "2"}, {"mig_profile": "3g.40gb"}, {"mig_profile": "1g.10gb"}, {"gpu_memory": "30G"}]


@dataclass
class Lab:
    """Eight H100 and 27 users of two groups and none, each with more work than they get. At length they begin with four requests.

    When a command starts, its user soon asks for another one. Some commands end early, some at their limit.
    """

    rng: Random
    now: float = START
    view: NodeView = field(
        default_factory=lambda: view_of(*(gpu_on(H100, n, mode=MigMode.ENABLED, instances=[]) for n in range(8)))
    )
    queue: list[WaitingRequest] = field(default_factory=list)
    ends: list[tuple[float, str]] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended: list[DayUsage] = field(default_factory=list)
    started: int = 0
    ids: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        groups = {str(uid): ("@msc",) for uid in MSC}
        self.view = replace(self.view, quotas=QUOTAS, groups=groups)
        for uid in (*PHD, *MSC, LIMITED, BUSY):
            for _ in range(4 if LONG else 1):
                heappush(self.arrivals, (START + self.rng.uniform(0, HOUR), uid))

    def usage(self) -> tuple[DayUsage, ...]:
        return with_running(self.ended, self.view.allocations, self.now)

    def step(self) -> None:
        """To the next arrival or end, and start what may start then."""
        end, arrival = (each[0][0] if each else float("inf") for each in (self.ends, self.arrivals))
        self.now = min(end, arrival)
        if arrival <= end:
            _, uid = heappop(self.arrivals)
            self.queue.append(WaitingRequest(f"w-{next(self.ids)}", self.asked(), uid))
        else:
            _, over = heappop(self.ends)
            self.ended.extend(usage_of(next(each for each in self.view.allocations if each.id == over), self.now))
            self.view = without(self.view, [over])
        while self.start_one():
            pass

    def asked(self) -> Request:
        return parse_request(**self.rng.choice(SIZES), time=self.rng.choice((None, "1h", "4h", "12h")))

    def start_one(self) -> bool:
        usage = self.usage()
        order = FairOrder(weighed_use(usage, self.now), GROUPS, QUOTAS)
        view = replace(self.view, recent={str(uid): each for uid, each in recent_use(usage, self.now).items()})
        queue = order.in_turn(self.queue)
        found = next(startable(view, queue, now=self.now), None)
        if found is None:
            return False
        waiter = next(each for each in queue if each.id == found)
        granted = may_start(view, queue, found, now=self.now)
        assert isinstance(granted, Granted)
        assert waiter.uid != BUSY or view.recent.get(str(BUSY), 0.0) < 10 * HOUR
        self.give(waiter, granted)
        self.queue.remove(waiter)
        return True

    def give(self, waiter: WaitingRequest, granted: Granted) -> None:
        size, keeper = size_of(granted.grants, self.view.node), ProcessKeeper(7, 1, uid=waiter.uid)
        allocation = Allocation(
            waiter.id,
            waiter.request,
            granted.grants,
            Phase.ACTIVE,
            self.now,
            "",
            keeper,
            size.memory,
            size.gpu_millionths,
        )
        after = apply(granted.plan, self.view)
        made = {slot for grant in granted.grants if (slot := grant.slot) is not None}
        self.view = replace(after, allocations=(*self.view.allocations, allocation), owned=after.owned | made)
        most = self.rng.uniform(0.2, 6.0) * HOUR
        heappush(self.ends, (self.now + min(most, waiter.request.time_limit or most), waiter.id))
        heappush(self.arrivals, (self.now + self.rng.uniform(0.01, 0.5) * HOUR, waiter.uid))
        self.started += 1
        self.refuse_beyond_limits()

    def refuse_beyond_limits(self) -> None:
        held, shares, msc = Counter[int](), Counter[int](), 0
        for each in self.view.allocations:
            assert isinstance(each.keeper, ProcessKeeper)
            held[each.keeper.uid] += each.gpu_millionths
            shares[each.keeper.uid] += len(each.grants)
            msc += each.gpu_millionths * (each.keeper.uid in MSC)
        assert max(held.values()) <= 4 * WHOLE
        assert held[LIMITED] <= WHOLE
        assert shares[LIMITED] <= 3
        assert msc <= 3.5 * WHOLE


@pytest.mark.parametrize(("days", "seed"), [(0.5, 1), pytest.param(20.0, 2, marks=pytest.mark.long)])
def test_a_fair_queue_gives_groups_their_part_and_no_user_more_than_the_limits(days: float, seed: int) -> None:
    lab = Lab(Random(seed))
    while lab.now < START + days * DAY_SECONDS:
        lab.step()
    used = Counter[str]()
    for each in lab.usage():
        used[GROUPS.get(each.uid, str(each.uid))] += round(each.gpu_seconds)
    phd = used["@phd"] / (used["@phd"] + used["@msc"])
    assert phd == pytest.approx(0.75, abs=0.02 if days > 1 else 0.1), lab.started
