"""A node's part in the rollout: it keeps its ticket as the MIG manager wishes, and leads while it waits and nobody else does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.leases import LeaseClient
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.rollout.budget import EVERY_NODE, RolloutLimit
from tranche.kubernetes.rollout.leader import Leader
from tranche.kubernetes.rollout.leadership import LeaderReport
from tranche.kubernetes.rollout.own_ticket import OwnTicket, RolloutNode
from tranche.kubernetes.rollout.turn import RolloutPermission, RolloutStatus

JITTER_SECONDS_PER_NODE = 0.02
"""Nodes that are told of a change at once make their tickets over so many seconds for each of them: 50 a second."""
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
        self.turn.publish(RolloutPermission(why_not="its ticket of the rollout was not read yet"))
        self._budget = budget
        self._fleet = fleet
        self._own = OwnTicket(leases, me, self._spread, clock=clock, random=random, sleep=sleep)
        self._leader = Leader(leases, budget, self._fleet_size, me.node, clock=clock, random=random, sleep=sleep)

    def wish(self, wish: RolloutStatus) -> None:
        """Have the node's ticket become what the wish needs, soon."""
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
            return "the rollout is paused, nobody may begin a change"
        # A leader says how many wait; none says so of those whom it has not seen yet, or whom it is about to let begin.
        if not (self._own.waits and news.waiting) or self._budget.nodes(None) == EVERY_NODE:
            return "its turn has not been given out yet"
        first = f"{news.busy} may now" if news.busy else "others come first"
        return f"at most {self._budget} of the nodes may change at once, and {first}"

    async def _stand_while_waiting(self) -> None:
        async for _ in self._own.latest.changes():
            while self._own.waits:
                await self._leader.stand()
            self._leader.news.publish(LeaderReport())  # what was said of this rollout is not true of the next one

    async def _spread(self) -> float:
        return min((await self._fleet_size() or 1) * JITTER_SECONDS_PER_NODE, _LONGEST_JITTER_SECONDS)

    async def _fleet_size(self) -> int | None:
        try:
            return await self._fleet()
        except TrancheError as error:
            _log.info("nodes not counted", extra={"reason": error.reason, "error": str(error)})
            return None
