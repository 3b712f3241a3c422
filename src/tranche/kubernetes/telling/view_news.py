"""The agent's part that tells of its node in a lease, for a page of the whole cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.kubernetes.api.leases import Lease, LeaseApi
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.live import Live
from tranche.kubernetes.observation.inventory import Snapshot
from tranche.kubernetes.telling.told_layouts import ToldLayouts
from tranche.kubernetes.telling.told_view import (
    RENEWED_SECONDS,
    marked,
    steady,
    told,
    told_to_lease,
    view_lease_name,
)

PAUSE_SECONDS = 1.0
_RETRY_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Written:
    """The lease as it stands, what it tells but for amounts, and when it was written, by `clock`."""

    lease: Lease
    steady: tuple[NodeView, ToldLayouts | None, frozenset[str]]
    at: float


class ViewNews:
    """A component: writes the lease when something has changed, at most once in `pause` seconds, and at least every `renewed`.

    `snapshots` are the node's, `node` is the node object as last seen. `fresh` says whether the latest snapshot is of now: while
    the driver does not answer nothing is renewed, so that nobody takes what is old for true. `layouts` is what the agent makes of
    the layout label; while there is none it is not told. `clock` is monotonic, in seconds.
    """

    name = "view-news"

    def __init__(
        self,
        leases: LeaseApi,
        snapshots: Live[Snapshot],
        node: Live[KubeNode | None],
        fresh: Callable[[], bool],
        layouts: Live[ToldLayouts],
        *,
        clock: Callable[[], float],
        pause: float = PAUSE_SECONDS,
        renewed: float = RENEWED_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._leases = leases
        self._snapshots = snapshots
        self._node = node
        self._fresh = fresh
        self._layouts = layouts
        self._clock = clock
        self._pause = pause
        self._renewed = renewed
        self._sleep = sleep
        self._wake = asyncio.Event()
        self._written: _Written | None = None
        self._trouble = ""

    def ready(self) -> Readiness:
        """Always: a page that shows less is no reason to take the node's agent out of service."""
        return Readiness(True)

    async def run(self) -> None:
        """Keep the lease true until cancelled. It stays then: pages say since when nobody has heard of the node."""
        self._written = None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(self._snapshots.changes()))
            group.create_task(self._listen(self._node.changes()))
            group.create_task(self._listen(self._layouts.changes()))
            group.create_task(self._keep())

    async def _listen(self, news: AsyncIterator[object]) -> None:
        async for _ in news:
            self._wake.set()

    async def _keep(self) -> None:
        await self._snapshots.first()
        await self._node.first()
        while True:
            self._wake.clear()
            try:
                await self._tell()
                self._trouble = ""
            except TrancheError as error:
                if str(error) != self._trouble:
                    _log.warning("node not told of", extra={"reason": error.reason, "error": str(error)})
                self._trouble = str(error)
                self._written = None
                await self._sleep(_RETRY_SECONDS)
                continue
            await self._sleep(self._pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._left()):
                    await self._wake.wait()

    def _left(self) -> float:
        """How long until the lease is due though nothing changes."""
        return self._renewed if self._written is None else max(0.0, self._written.at + self._renewed - self._clock())

    async def _tell(self) -> None:
        node = self._node.value
        if node is None or not node.uid or not self._fresh():
            return
        snapshot = self._snapshots.value
        view = told(snapshot.view, snapshot.condemned)
        before = self._written
        now = self._clock()
        layouts = self._layouts.value if self._layouts.synced else None
        waiting = marked(snapshot.view, snapshot.condemned)
        lasting = (await asyncio.to_thread(steady, view), layouts, waiting)
        if before is not None and before.steady == lasting and now - before.at < self._renewed:
            return
        wanted = await asyncio.to_thread(told_to_lease, node.name, view, (node.name, node.uid), layouts, waiting)
        answer = await self._write(wanted, None if before is None else before.lease)
        self._written = None if answer is None else _Written(answer, lasting, now)
        if answer is None:
            self._wake.set()  # somebody else has written it, or removed it: it is read anew

    async def _write(self, wanted: Lease, before: Lease | None) -> Lease | None:
        """The lease as it is then; None when it was another one meanwhile."""
        before = before or await self._leases.get(view_lease_name(wanted.holder))
        if before is None:
            return await self._leases.create(wanted)
        return await self._leases.replace(replace(wanted, version=before.version))
