"""Leads the rollout while somebody waits: follows every ticket, and grants turns within the budget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.leases import Lease, LeaseClient
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.rollout.budget import RolloutLimit
from tranche.kubernetes.rollout.grants import busy_text, grants, held_up_text
from tranche.kubernetes.rollout.leadership import RENEW_SECONDS, LeaderLease, LeaderReport
from tranche.kubernetes.rollout.ticket import (
    TICKET,
    TICKET_LABEL,
    RolloutTicket,
    TicketState,
    read_ticket,
    version_number,
    write_ticket,
)

_FLEET_SECONDS = 60.0
_TRY_SECONDS_PER_WAITING = 0.1
_FIRST_TRY_SECONDS, _LAST_TRY_SECONDS = 1.0, 120.0

_log = logging.getLogger(__name__)


class Leader:
    """A candidate that leads when nobody else does. `news` is what the leader says, whoever it is.

    `fleet` asks how many nodes there are, None when that cannot be known now.
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
        """Try to lead, and lead until nobody waits; then a pause, the longer the more others wait and try as well."""
        try:
            if await self._leadership.try_to_lead():
                await self._lead()
            else:
                self.news.publish(self._leadership.news)
        except TrancheError as error:
            _log.info("rollout not led", extra={"reason": error.reason, "error": str(error)})
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
        """Until nobody waits, or another one may have taken over."""
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
            # Nodes may have joined since somebody counted.
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
    """Every ticket. What was granted counts before the watch tells of it: its place is given to nobody else."""
    latest = [max(lease, granted.get(lease.name, lease), key=version_number) for lease in leases]
    return [ticket for lease in latest if (ticket := read_ticket(lease)) is not None]


def _renewal(ticket: RolloutTicket, before: tuple[str, float] | None, now: float) -> tuple[str, float]:
    """State and renewal that the ticket shows, and since when it was seen so by this clock."""
    shown = f"{ticket.state} {ticket.lease.renewed}"
    return before if before is not None and before[0] == shown else (shown, now)
