"""A node's part in the rollout: it keeps its ticket as the MIG manager wishes. While it waits and there is no leader, it leads.

The leader follows every ticket, and grants turns within the budget.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.leases import Lease, LeaseClient
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.rollout.budget import EVERY_NODE, RolloutLimit, busy_text, grants, held_up_text
from tranche.kubernetes.rollout.leadership import RENEW_SECONDS, LeaderLease, LeaderReport
from tranche.kubernetes.rollout.own_ticket import OwnTicket, RolloutNode
from tranche.kubernetes.rollout.ticket import (
    TICKET,
    TICKET_LABEL,
    RolloutTicket,
    TicketState,
    read_ticket,
    version_number,
    write_ticket,
)
from tranche.kubernetes.rollout.turn import RolloutPermission, RolloutStatus

JITTER_SECONDS_PER_NODE = 0.02
"""Nodes that hear of a change at once create their tickets over so many seconds per node: 50 a second."""
_LONGEST_JITTER_SECONDS = 120.0

_log = logging.getLogger(__name__)


class Rollout:
    """`turn` is what the node may do now. `fleet` asks how many nodes there are. `random` gives numbers from 0 to 1."""

    def __init__(
        self,
        leases: LeaseClient,
        budget: RolloutLimit,
        fleet: Callable[[], Awaitable[int]],
        me: RolloutNode,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.turn: LatestValue[RolloutPermission] = LatestValue()
        self.turn.publish(RolloutPermission(why_not="its rollout ticket has not been read yet"))
        self._budget = budget
        self._fleet = fleet
        self._own = OwnTicket(leases, me, self._spread, clock=clock, random=random, sleep=sleep)
        self._leader = Leader(leases, budget, self._fleet_size, me.node, clock=clock, random=random, sleep=sleep)

    def wish(self, wish: RolloutStatus) -> None:
        """Soon change the node's ticket to what the wish needs."""
        self._own.wish(wish)

    async def run(self) -> None:
        """Take part until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._own.run())
            group.create_task(self._tell(self._own.latest.changes()))
            group.create_task(self._tell(self._leader.news.changes()))
            group.create_task(self._stand_while_waiting())

    async def _tell(self, news: AsyncIterator[object]) -> None:
        async for _ in news:
            if self._own.latest.synced:
                self.turn.publish(RolloutPermission(self._own.ticket, self._why_not()))

    def _why_not(self) -> str:
        news = self._leader.news.value
        if news.held_up_by:
            return f"the rollout is held up: {news.held_up_by}"
        if self._budget.amount == 0:
            return "the rollout is paused: no node may start a change"
        # A leader says how many wait, without those that it has not seen yet or is about to let begin.
        if not (self._own.waits and news.waiting) or self._budget.nodes(None) == EVERY_NODE:
            return "its turn has not come yet"
        first = f"{news.busy} may change now" if news.busy else "other nodes come first"
        return f"at most {self._budget} of the nodes may change at once; {first}"

    async def _stand_while_waiting(self) -> None:
        async for _ in self._own.latest.changes():
            while self._own.waits:
                await self._leader.stand()
            self._leader.news.publish(LeaderReport())  # news of this rollout is not true of the next one

    async def _spread(self) -> float:
        return min((await self._fleet_size() or 1) * JITTER_SECONDS_PER_NODE, _LONGEST_JITTER_SECONDS)

    async def _fleet_size(self) -> int | None:
        try:
            return await self._fleet()
        except TrancheError as error:
            _log.info("cannot count the nodes", extra={"reason": error.reason, "error": str(error)})
            return None


_FLEET_SECONDS = 60.0
_TRY_SECONDS_PER_WAITING = 0.1
_FIRST_TRY_SECONDS, _LAST_TRY_SECONDS = 1.0, 120.0


class Leader:
    """A candidate that leads when there is no other leader. `news` is the leader's, this one's or another's.

    `fleet` asks how many nodes there are, None while unknown.
    """

    def __init__(
        self,
        leases: LeaseClient,
        budget: RolloutLimit,
        fleet: Callable[[], Awaitable[int | None]],
        me: str,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.news: LatestValue[LeaderReport] = LatestValue()
        self.news.publish(LeaderReport())
        self._leases = leases
        self._budget = budget
        self._fleet = fleet
        self._clock = clock
        self._random = random
        self._sleep = sleep
        self._leadership = LeaderLease(leases, me, clock=clock)

    async def stand(self) -> None:
        """Try to lead, and lead until no node waits. Then pause, longer when more nodes wait and try as well."""
        try:
            if await self._leadership.try_to_lead():
                await self._lead()
            else:
                self.news.publish(self._leadership.news)
        except TrancheError as error:
            _log.info("cannot lead the rollout", extra={"reason": error.reason, "error": str(error)})
        pause = min(max(self.news.value.waiting * _TRY_SECONDS_PER_WAITING, _FIRST_TRY_SECONDS), _LAST_TRY_SECONDS)
        await self._sleep(pause * (0.5 + self._random()))

    async def _lead(self) -> None:
        _log.info("leading the rollout", extra={"budget": str(self._budget)})
        tickets: LatestValue[tuple[Lease, ...]] = LatestValue()
        changed = asyncio.Event()
        work = (self._follow(tickets, changed), self._grant(tickets, changed))
        await self._leadership.lead(*work, sleep=self._sleep, news=lambda: self.news.value)

    async def _follow(self, tickets: LatestValue[tuple[Lease, ...]], changed: asyncio.Event) -> None:
        async with aclosing(self._leases.watch_all(TICKET_LABEL, TICKET)) as versions:
            async for leases in versions:
                tickets.publish(leases)
                changed.set()

    async def _grant(self, tickets: LatestValue[tuple[Lease, ...]], changed: asyncio.Event) -> None:
        """Grant turns until no node waits, or another leader may have taken over."""
        heard: dict[str, tuple[str, float]] = {}
        granted: dict[str, Lease] = {}
        fleet: int | None = None
        counted = float("-inf")
        await tickets.first()
        while True:
            changed.clear()
            now = self._clock()
            if self._budget.percent and now - counted > _FLEET_SECONDS:
                fleet, counted = await self._fleet(), now
            read = _read_all(tickets.value, granted)
            # Nodes may have joined since the last count.
            limit = self._budget.nodes(None if fleet is None else max(fleet, len(read)))
            heard = {each.node: _renewal(each, heard.get(each.node), now) for each in read}
            found = grants(read, limit, {node: now - since for node, (_, since) in heard.items()})
            back = [replace(each, state=TicketState.WAITING, passed_over=True) for each in found.taken_back]
            for ticket in (*back, *(replace(each, state=TicketState.GRANTED) for each in found.granted)):
                if not self._leadership.sure:
                    return
                written = await self._leases.replace(write_ticket(ticket, node_uid=""), renew=False)
                if written is not None:
                    granted[written.name] = written
            self.news.publish(LeaderReport(found.waiting, held_up_text(found.held_up_by), busy_text(found.busy)))
            if not found.waiting and not found.granted:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_SECONDS):
                    await changed.wait()


def _read_all(leases: Sequence[Lease], granted: Mapping[str, Lease]) -> list[RolloutTicket]:
    """Every ticket. A granted ticket counts before the watch reports it, so that no other gets its place."""
    latest = [max(lease, granted.get(lease.name, lease), key=version_number) for lease in leases]
    return [ticket for lease in latest if (ticket := read_ticket(lease)) is not None]


def _renewal(ticket: RolloutTicket, before: tuple[str, float] | None, now: float) -> tuple[str, float]:
    """State and renewal that the ticket shows, and since when this clock has seen them so."""
    shown = f"{ticket.state} {ticket.lease.renewed}"
    return before if before is not None and before[0] == shown else (shown, now)
