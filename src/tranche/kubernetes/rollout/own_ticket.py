"""A node's own ticket: created, written and removed as the MIG manager wishes, and followed while it exists."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.leases import Lease, LeaseClient
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.rollout.ticket import (
    RolloutTicket,
    TicketState,
    read_ticket,
    ticket_name,
    version_number,
    write_ticket,
)
from tranche.kubernetes.rollout.turn import LayoutChangeState, RolloutStatus, TicketAction, next_ticket

_RENEW_CHANGING_SECONDS = 30.0
_RENEW_WAITING_SECONDS = 300.0
_PAUSE_SECONDS = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutNode:
    """The node that takes part. `uid` is its object's, "" while unknown."""

    node: str
    uid: Callable[[], str]


class OwnTicket:
    """`latest` is the ticket as last read or written, None without one; it has no value before the first look.

    `spread` says how many seconds to hold a new ticket back at most; `random` gives numbers from 0 to 1; `clock` is monotonic.
    """

    def __init__(
        self,
        leases: LeaseClient,
        me: RolloutNode,
        spread: Callable[[], Awaitable[float]],
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.latest: LatestValue[RolloutTicket | None] = LatestValue()
        self._leases = leases
        self._me = me
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
        lease = await self._leases.get(ticket_name(self._me.node))
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
                _log.info("cannot keep the rollout ticket", extra={"reason": error.reason, "error": str(error)})
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
        move, ticket = next_ticket(self._me.node, self.ticket, self._wish)
        if move is TicketAction.REMOVE and self.ticket is not None:
            if await self._leases.delete(self.ticket.lease):
                self._know(None)
            else:
                await self._read()
        elif ticket is not None:
            lease = write_ticket(ticket, node_uid=self._me.uid())
            written = await (self._leases.replace(lease) if lease.version else self._leases.create(lease))
            if written is None:
                await self._read()
            else:
                self._know(read_ticket(written))
        if move is not TicketAction.NONE:
            self._to_move.set()  # meanwhile another wish may have come, or someone else may have written to the ticket

    async def _follow(self) -> None:
        """Follow the ticket while there is one."""
        while True:
            async for ticket in self.latest.changes():
                if ticket is not None:
                    break
            async with aclosing(self._leases.watch(ticket_name(self._me.node))) as versions:
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
