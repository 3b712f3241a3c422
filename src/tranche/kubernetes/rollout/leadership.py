"""Elects a leader, one program at a time, by a lease that it renews; the others try once it stops renewing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace

from tranche.kubernetes.api.object_client import Lease, LeaseClient
from tranche.kubernetes.rollout.ticket import TICKET_LABEL

LEADER_LEASE = "tranche-rollout"
LEASE_SECONDS = 15
RENEW_SECONDS = 5.0
SURE_SECONDS = 10.0
"""How long after a renewal no other candidate can have taken over, with 5 s to spare for a write on its way."""

WAITING_ANNOTATION = "tranche.dev/waiting"
HELD_UP_ANNOTATION = "tranche.dev/held-up-by"
BUSY_ANNOTATION = "tranche.dev/changing"


@dataclass(frozen=True, slots=True)
class LeaderReport:
    """What the leader says in its lease: how many wait, which nodes hold them up, and which have the places of the budget."""

    waiting: int = 0
    held_up_by: str = ""
    busy: str = ""


class LeaderLease:
    """One candidate. `clock` is monotonic, in seconds; it trusts no other machine's clock."""

    def __init__(
        self,
        leases: LeaseClient,
        me: str,
        *,
        clock: Callable[[], float],
        name: str = LEADER_LEASE,
        label: str = TICKET_LABEL,
    ) -> None:
        """The candidates compete for the lease `name`; `label` finds it."""
        self.news = LeaderReport()
        self._name = name
        self._labels = {label: "leader"}
        self._leases = leases
        self._me = me
        self._clock = clock
        self._held: Lease | None = None
        self._renewed_at = float("-inf")
        self._seen: tuple[str, float] = ("", 0.0)

    @property
    def sure(self) -> bool:
        """Whether no other candidate can lead now."""
        return self._held is not None and self._clock() - self._renewed_at < SURE_SECONDS

    async def try_to_lead(self) -> bool:
        """Whether this candidate leads now: no other does, or the other's lease was not renewed for its whole length."""
        began = self._clock()
        lease = await self._leases.get(self._name)
        if lease is None:
            return self._took(
                await self._leases.create(Lease(self._name, self._me, LEASE_SECONDS, self._labels)), began
            )
        self.news = _read_news(lease.annotations)
        if lease.version != self._seen[0]:
            self._seen = (lease.version, began)
        if lease.holder != self._me and began - self._seen[1] <= LEASE_SECONDS:
            return False
        return self._took(await self._leases.replace(replace(lease, holder=self._me, seconds=LEASE_SECONDS)), began)

    async def renew(self, news: LeaderReport) -> bool:
        """Renew the lead, and publish the news; False when another candidate has taken over."""
        if self._held is None:
            return False
        began = self._clock()
        self.news = news
        annotations = {
            WAITING_ANNOTATION: str(news.waiting),
            HELD_UP_ANNOTATION: news.held_up_by,
            BUSY_ANNOTATION: news.busy,
        }
        said = {key: value for key, value in annotations.items() if value}
        return self._took(await self._leases.replace(replace(self._held, annotations=said)), began)

    async def lead(
        self,
        *work: Coroutine[None, None, None],
        sleep: Callable[[float], Awaitable[None]],
        news: Callable[[], LeaderReport] = LeaderReport,
    ) -> None:
        """Renew while the work runs; resign when the first of it ends or another candidate has taken over. Raises the work's
        errors.
        """

        async def renewing() -> None:
            while await self.renew(news()):
                await sleep(RENEW_SECONDS)

        tasks = [asyncio.create_task(each) for each in (*work, renewing())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self.resign()

    async def resign(self) -> None:
        """Stop leading, so that the next leader need not wait."""
        held, self._held = self._held, None
        while held is not None and held.holder == self._me and not await self._leases.delete(held):
            held = await self._leases.get(self._name)  # a renewal whose answer was not awaited came first

    def _took(self, lease: Lease | None, began: float) -> bool:
        self._held = lease
        self._renewed_at = began if lease is not None else float("-inf")
        return lease is not None


def _read_news(annotations: Mapping[str, str]) -> LeaderReport:
    waiting = annotations.get(WAITING_ANNOTATION, "")
    number = int(waiting) if waiting.isdecimal() else 0
    return LeaderReport(number, annotations.get(HELD_UP_ANNOTATION, ""), annotations.get(BUSY_ANNOTATION, ""))
