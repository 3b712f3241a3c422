"""A lease in which an agent says something of its node, kept true: written on change, tried again, read anew after a conflict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.leases import Lease, LeaseClient
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.latest_value import LatestValue

PAUSE_SECONDS = 1.0
_RETRY_SECONDS = 5.0

Said = TypeVar("Said")


class _LeaseReport(Protocol[Said]):
    """What is said in a lease; equal news is no news."""

    def about(self) -> KubeNode | None:
        """The node that can be told of now; None while there is nothing to say."""
        ...

    def lease_name(self, node: KubeNode) -> str:
        """The name of its lease."""
        ...

    def read(self, lease: Lease) -> Said | None:
        """What a lease says; None when that cannot be read."""
        ...

    async def now(self, node: KubeNode, before: Said | None) -> Said:
        """What is to be said; the lease says `before`, None where there is none or nobody knows."""
        ...

    async def to_lease(self, node: KubeNode, said: Said, before: Lease | None, *, changed: bool) -> Lease:
        """The lease that says it, in the place of that one, None where there is none; `changed` is whether it is news."""
        ...

    def not_told(self, error: TrancheError) -> None:
        """It could not be said, and for another reason than the last time."""
        ...


@dataclass(frozen=True, slots=True)
class _Standing(Generic[Said]):
    """The lease as it stands, what it says, and when it was read or written, by `clock`."""

    lease: Lease | None
    says: Said | None
    at: float


class LeaseWriter(Generic[Said]):
    """Writes the lease when there is news, at most once in `pause` seconds.

    With `renew` it is written again when it was read, and `every` seconds after it was written; else it is read again so often,
    since somebody may have deleted it. While `fresh` says no, news alone is written, and the lease stays as old as it is.
    `trouble` says why the lease does not say what it shall, "" when it does. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        leases: LeaseClient,
        news: _LeaseReport[Said],
        *,
        every: float,
        renew: bool,
        clock: Callable[[], float],
        fresh: Callable[[], bool] = lambda: True,
        trouble: str = "",
        pause: float = PAUSE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.trouble = trouble
        self._leases = leases
        self._news = news
        self._every = every
        self._renew = renew
        self._fresh = fresh
        self._clock = clock
        self._pause = pause
        self._sleep = sleep
        self._wake = asyncio.Event()
        self._standing: _Standing[Said] | None = None

    async def run(self, needed: Sequence[LatestValue[Any]], others: Sequence[LatestValue[Any]] = ()) -> None:
        """Keep it until cancelled, and leave it then. News may come with a change of any of these, not before all `needed`."""
        self._standing = None
        async with asyncio.TaskGroup() as group:
            for each in (*needed, *others):
                group.create_task(self._listen(each.changes()))
            group.create_task(self._keep(needed))

    async def _listen(self, changes: AsyncIterator[object]) -> None:
        async for _ in changes:
            self._wake.set()

    async def _keep(self, needed: Sequence[LatestValue[Any]]) -> None:
        for each in needed:
            await each.first()
        while True:
            self._wake.clear()
            try:
                await self._look()
            except TrancheError as error:
                if str(error) != self.trouble:
                    self._news.not_told(error)
                self.trouble = str(error)
                self._standing = None
                await self._sleep(_RETRY_SECONDS)
                continue
            self.trouble = ""
            await self._sleep(self._pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._left()):
                    await self._wake.wait()

    def _left(self) -> float:
        """How long until the lease is due though nothing changes."""
        return self._every if self._standing is None else max(0.0, self._standing.at + self._every - self._clock())

    async def _look(self) -> None:
        node = self._news.about()
        if node is None:
            return
        fresh, due = self._fresh(), self._standing is None or not self._left()
        renew = self._renew and fresh
        if self._standing is None or (due and not renew):
            lease = await self._leases.get(self._news.lease_name(node))
            self._standing = _Standing(lease, None if lease is None else self._news.read(lease), self._clock())
        standing, at = self._standing, self._clock()
        said = await self._news.now(node, standing.says)
        changed = said != standing.says
        if not changed and not (due and renew):
            return
        wanted = await self._news.to_lease(node, said, standing.lease, changed=changed)
        if standing.lease is None:
            answer = await self._leases.create(wanted)
        else:
            before = standing.lease
            wanted = replace(wanted, version=before.version, renewed=before.renewed)
            answer = await self._leases.replace(wanted, renew=fresh or not before.renewed)
        self._standing = None if answer is None else _Standing(answer, said, at)
        if answer is None:
            self._wake.set()  # somebody else has written it, or removed it: it is read anew
