"""The agent's part that tells of its node in a lease, for a page of the whole cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.kubernetes.api.leases import Lease, LeaseApi
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.observation.inventory import Snapshot
from tranche.kubernetes.report_lease import PAUSE_SECONDS, ReportLease
from tranche.kubernetes.telling.told_layouts import ToldLayouts
from tranche.kubernetes.telling.told_view import (
    RENEWED_SECONDS,
    marked,
    steady,
    told,
    told_to_lease,
    view_lease_name,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Told:
    """What is told. Amounts alone, which `steady` leaves out, are no news."""

    view: NodeView = field(compare=False)
    steady: NodeView
    layouts: ToldLayouts | None
    marked: frozenset[str]


class ViewReporter:
    """A component: writes the lease when something has changed, at most once in `pause` seconds, and at least every `renewed`.

    `snapshots` are the node's, `node` is the node object as last seen. `fresh` says whether the latest snapshot is of now: while
    the driver does not answer nothing is renewed, so that nobody takes what is old for true. `layouts` is what the agent makes of
    the layout label; while there is none it is not told. `clock` is monotonic, in seconds.
    """

    name = "view-news"

    def __init__(
        self,
        leases: LeaseApi,
        snapshots: LatestValue[Snapshot],
        node: LatestValue[KubeNode | None],
        fresh: Callable[[], bool],
        layouts: LatestValue[ToldLayouts],
        *,
        clock: Callable[[], float],
        pause: float = PAUSE_SECONDS,
        renewed: float = RENEWED_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._snapshots = snapshots
        self._node = node
        self._fresh = fresh
        self._layouts = layouts
        self._lease = ReportLease(leases, self, every=renewed, renew=True, clock=clock, pause=pause, sleep=sleep)

    def ready(self) -> Readiness:
        """Always: a page that shows less is no reason to take the node's agent out of service."""
        return Readiness(True)

    async def run(self) -> None:
        """Keep the lease true until cancelled. It stays then: pages say since when nobody has heard of the node."""
        await self._lease.run((self._snapshots, self._node), (self._layouts,))

    def about(self) -> KubeNode | None:
        """The node, while the driver answers."""
        node = self._node.value
        return node if node is not None and node.uid and self._fresh() else None

    def lease_name(self, node: KubeNode) -> str:
        """That of the node's view."""
        return view_lease_name(node.name)

    def read(self, _: Lease) -> None:
        """Nothing: what this process has not told is told anew."""

    async def now(self, _: KubeNode, before: _Told | None) -> _Told:
        """The view as it is."""
        snapshot = self._snapshots.value
        view = told(snapshot.view, snapshot.condemned)
        layouts = self._layouts.value if self._layouts.synced else None
        waiting = marked(snapshot.view, snapshot.condemned)
        return _Told(view, await asyncio.to_thread(steady, view), layouts, waiting)

    async def to_lease(self, node: KubeNode, said: _Told, before: Lease | None) -> Lease:
        """The lease with the whole view."""
        owner = (node.name, node.uid)
        return await asyncio.to_thread(told_to_lease, node.name, said.view, owner, said.layouts, said.marked)

    def not_told(self, error: TrancheError) -> None:
        """A line of the log."""
        _log.warning("node not told of", extra={"reason": error.reason, "error": str(error)})
