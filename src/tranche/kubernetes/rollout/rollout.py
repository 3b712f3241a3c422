"""A node's part in the rollout: it keeps its ticket as the MIG manager wishes. While it waits and there is no leader, it leads.

The leader follows every ticket, and grants turns within the budget.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.latest_value import LatestValue, within
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.rollout.leadership import RENEW_SECONDS, LeaderLease, LeaderReport
from tranche.kubernetes.rollout.ticket import (
    EVERY_NODE,
    TICKET,
    TICKET_LABEL,
    LayoutChangeState,
    RolloutLimit,
    RolloutPermission,
    RolloutStatus,
    RolloutTicket,
    TicketState,
    busy_text,
    grants,
    held_up_text,
    next_ticket,
    read_ticket,
    ticket_name,
    version_number,
    write_ticket,
)

JITTER_SECONDS_PER_NODE = 0.02
"""Nodes that hear of a change at once create their tickets over so many seconds per node: 50 a second."""
_LONGEST_JITTER_SECONDS = 120.0
_FLEET_SECONDS = 60.0
_TRY_SECONDS_PER_WAITING = 0.1
_FIRST_TRY_SECONDS, _LAST_TRY_SECONDS = 1.0, 120.0
_RENEW_CHANGING_SECONDS = 30.0
_RENEW_WAITING_SECONDS = 300.0
_PAUSE_SECONDS = 2.0

_log = logging.getLogger(__name__)


class OwnTicket:
    """A node's own ticket: created, written and removed as the MIG manager wishes, and followed while it exists.

    `latest` is the ticket as last read or written, None without one; it has no value before the first look. `spread` says how
    many seconds to hold a new ticket back at most; `random` gives numbers from 0 to 1; `clock` is monotonic.
    """

    def __init__(
        self,
        services: NodeContext,
        spread: Callable[[], Awaitable[float]],
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.latest: LatestValue[RolloutTicket | None] = LatestValue()
        self._services = services
        self._leases = services.leases
        self._spread = spread
        self._clock = clock
        self._random = random
        self._sleep = sleep
        self._newest = 0  # the version that this node saw last; news of older ones from a watch is out of date
        self._sure = False  # whether every request about it was answered; if not, the ticket may have changed
        self._wish: RolloutStatus | None = None
        self._to_move = asyncio.Event()

    @property
    def ticket(self) -> RolloutTicket | None:
        """The ticket as last read or written."""
        return self.latest.value if self.latest.synced else None

    @property
    def waits(self) -> bool:
        """Whether it waits for its turn."""
        return self.ticket is not None and self.ticket.state is TicketState.WAITING

    def wish(self, wish: RolloutStatus) -> None:
        """Soon change the ticket to what the wish needs."""
        if wish != self._wish:
            self._wish = wish
            self._to_move.set()

    async def run(self) -> None:
        """Maintain and follow it until cancelled."""
        await self._until_done(self._read)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep())
            group.create_task(self._follow())
            group.create_task(self._renew())

    async def _read(self) -> None:
        lease = await self._leases.get(ticket_name(self._services.node_name))
        self._know(None if lease is None else read_ticket(lease))
        self._sure = True

    def _know(self, ticket: RolloutTicket | None) -> None:
        if ticket is not None:
            self._newest = version_number(ticket.lease)
        self.latest.publish(ticket)

    async def _until_done(self, action: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await action()
            except TrancheError as error:
                self._sure = False
                _log.info("cannot update the rollout ticket", extra={"reason": error.reason, "error": str(error)})
                await self._sleep(_PAUSE_SECONDS * (1 + self._random()))

    async def _keep(self) -> None:
        while True:
            await self._to_move.wait()
            self._to_move.clear()
            await self._until_done(self._move)

    async def _move(self) -> None:
        if self._wish is None:
            return
        if not self._sure:
            await self._read()
        if self._wish.stage is LayoutChangeState.WANTED and self.ticket is None:
            await self._sleep(self._random() * await self._spread())
        before, wanted = self.ticket, next_ticket(self._services.node_name, self.ticket, self._wish)
        if wanted is before:
            return
        if wanted is not None:
            node = self._services.node.value if self._services.node.synced else None
            lease = write_ticket(wanted, node_uid="" if node is None else node.uid)
            written = await (self._leases.replace(lease) if lease.version else self._leases.create(lease))
            if written is None:
                await self._read()
            else:
                self._know(read_ticket(written))
        elif before is not None:
            if await self._leases.delete(before.lease):
                self._know(None)
            else:
                await self._read()
        self._to_move.set()  # meanwhile another wish may have come, or someone else may have written to the ticket

    async def _follow(self) -> None:
        """Follow the ticket while there is one."""
        while True:
            await self.latest.until(lambda ticket: ticket is not None)
            async with aclosing(self._leases.watch(ticket_name(self._services.node_name))) as versions:
                async for lease in versions:
                    self._heard(lease)
                    if self.ticket is None:
                        break

    def _heard(self, lease: Lease | None) -> None:
        if lease is None:
            # It may be about an earlier ticket, long gone; the next move asks what exists now.
            self._sure = self.ticket is None
        elif version_number(lease) > self._newest and (ticket := read_ticket(lease)) != self.ticket:
            self._know(ticket)
        self._to_move.set()

    async def _renew(self) -> None:
        """Renew the ticket from time to time, to show that this node is still there."""
        renewed = self._clock()
        while True:
            await self._sleep(_RENEW_CHANGING_SECONDS)
            ticket, now = self.ticket, self._clock()
            pause = _RENEW_WAITING_SECONDS if self.waits else _RENEW_CHANGING_SECONDS
            if ticket is None or now - renewed < 0.9 * pause:
                continue
            with suppress(TrancheError):
                lease = await self._leases.replace(ticket.lease)
                renewed = now
                if lease is None:
                    await self._read()
                elif self.ticket is ticket:
                    self._know(read_ticket(lease))


class Rollout:
    """`turn` is what the node may do now. All nodes that run `daemon_set` take part. `random` gives numbers from 0 to 1.

    A node that waits is a candidate, and leads when there is no other leader.
    """

    def __init__(
        self,
        services: NodeContext,
        budget: RolloutLimit,
        daemon_set: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.turn = LatestValue(RolloutPermission(why_not="its rollout ticket has not been read yet"))
        self._services = services
        self._leases = services.leases
        self._budget = budget
        self._daemon_set = daemon_set
        self._clock = clock
        self._random = random
        self._sleep = sleep
        self._own = OwnTicket(services, self._spread, clock=clock, random=random, sleep=sleep)
        self._leadership = LeaderLease(services.leases, services.node_name, clock=clock)
        self._news = LatestValue(LeaderReport())  # the leader's, this node or another

    def wish(self, wish: RolloutStatus) -> None:
        """Soon change the node's ticket to what the wish needs."""
        self._own.wish(wish)

    async def run(self) -> None:
        """Take part until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._own.run())
            group.create_task(self._tell(self._own.latest.changes()))
            group.create_task(self._tell(self._news.changes()))
            group.create_task(self._stand_while_waiting())

    async def _tell(self, news: AsyncIterator[object]) -> None:
        async for _ in news:
            if self._own.latest.synced:
                self.turn.publish(RolloutPermission(self._own.ticket, self._why_not()))

    def _why_not(self) -> str:
        news = self._news.value
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
                await self._stand()
            self._news.publish(LeaderReport())  # news of this rollout is not true of the next one

    async def _spread(self) -> float:
        return min((await self._fleet_size() or 1) * JITTER_SECONDS_PER_NODE, _LONGEST_JITTER_SECONDS)

    async def _fleet_size(self) -> int | None:
        """How many nodes there are, None while unknown."""
        try:
            found = await self._services.api.daemon_set(self._services.namespace, self._daemon_set)
            return None if found is None else found.desired
        except TrancheError as error:
            _log.info("cannot count the nodes", extra={"reason": error.reason, "error": str(error)})
            return None

    async def _stand(self) -> None:
        """Try to lead, and lead until no node waits. Then pause, longer when more nodes wait and try as well."""
        try:
            if await self._leadership.try_to_lead():
                await self._lead()
            else:
                self._news.publish(self._leadership.news)
        except TrancheError as error:
            _log.info("cannot lead the rollout", extra={"reason": error.reason, "error": str(error)})
        pause = min(max(self._news.value.waiting * _TRY_SECONDS_PER_WAITING, _FIRST_TRY_SECONDS), _LAST_TRY_SECONDS)
        await self._sleep(pause * (0.5 + self._random()))

    async def _lead(self) -> None:
        _log.info("leading the rollout", extra={"budget": str(self._budget)})
        tickets: LatestValue[tuple[Lease, ...]] = LatestValue()
        changed = asyncio.Event()
        work = (self._follow(tickets, changed), self._grant(tickets, changed))
        await self._leadership.lead(*work, sleep=self._sleep, news=lambda: self._news.value)

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
                fleet, counted = await self._fleet_size(), now
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
            self._news.publish(LeaderReport(found.waiting, held_up_text(found.held_up_by), busy_text(found.busy)))
            if not found.waiting and not found.granted:
                return
            await within(RENEW_SECONDS, changed.wait())


def _read_all(leases: Sequence[Lease], granted: Mapping[str, Lease]) -> list[RolloutTicket]:
    """Every ticket. A granted ticket counts before the watch reports it, so that no other gets its place."""
    latest = [max(lease, granted.get(lease.name, lease), key=version_number) for lease in leases]
    return [ticket for lease in latest if (ticket := read_ticket(lease)) is not None]


def _renewal(ticket: RolloutTicket, before: tuple[str, float] | None, now: float) -> tuple[str, float]:
    """State and renewal that the ticket shows, and since when this clock has seen them so."""
    shown = f"{ticket.state} {ticket.lease.renewed}"
    return before if before is not None and before[0] == shown else (shown, now)
