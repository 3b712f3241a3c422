"""The agent's part that reports its node in a lease: to people, where that is on, and to a controller that chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tranche.core.allocation import WithheldDevice
from tranche.core.errors import UsageError
from tranche.kubernetes.api.leases import Lease, LeaseClient
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.claims.node_mode import mode_in_force
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.devices.taints import KeptRoom, kept_sizes
from tranche.kubernetes.gated.agent.withheld import withheld_places
from tranche.kubernetes.gated.leases import offered_view
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.health import FaultyDevices, faulty
from tranche.kubernetes.node.inventory import Snapshot
from tranche.kubernetes.report_lease import PAUSE_SECONDS, LeaseWriter
from tranche.kubernetes.telling.told_layouts import LayoutReport
from tranche.kubernetes.telling.told_view import (
    RENEWED_SECONDS,
    REPORT,
    ShareOffer,
    ViewReport,
    bare,
    generation_of,
    lease_name,
    marked,
    steady,
    told,
    told_from_lease,
    told_to_lease,
    use_of_lease,
)

CHECK_SECONDS = 300.0
"""How often the lease is read again where it is not renewed: somebody may have deleted it."""


@dataclass(frozen=True, slots=True)
class ReportSource:
    """What there is to report, each as last known.

    `node` is the node object. `fresh` says whether the latest of `snapshots` is current. `refused` says why pods, by uid, cannot
    have the share that a controller chose for them. `layouts` is what the agent makes of the layout label; it is left out until
    there is one. `use` is the GPUs' use as annotation text; until there is one, the previously reported one stays.
    """

    snapshots: LatestValue[Snapshot]
    node: LatestValue[KubeNode | None]
    backend: LatestValue[AllocationBackend]
    fresh: Callable[[], bool]
    faults: LatestValue[FaultyDevices]
    refused: LatestValue[Mapping[str, str]]
    layouts: LatestValue[LayoutReport]
    use: LatestValue[str] = field(default_factory=LatestValue)


@dataclass(frozen=True, slots=True)
class _Said:
    """What is reported, and the part of it whose changes are news: changed amounts alone are not."""

    told: ViewReport = field(compare=False)
    news: ViewReport


class NodeReporter:
    """A component: writes the lease after changes, at most once in `pause` seconds.

    With `to_people` it writes at least every `RENEWED_SECONDS` while the driver answers, so that nobody mistakes an old report
    for a current one. Without it, the report is only for a controller that chooses of the node's GPUs. `say` records an event of
    the node, by reason and message. `clock` is monotonic, in seconds.
    """

    name = "report"

    def __init__(
        self,
        leases: LeaseClient,
        news: ReportSource,
        *,
        to_people: bool,
        clock: Callable[[], float],
        say: Callable[[KubeNode, str, str], Awaitable[None]],
        pause: float = PAUSE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._news = news
        self._to_people = to_people
        self._say_event = say
        self._unknown_size = ""
        self._lease = LeaseWriter(
            leases,
            self,
            every=RENEWED_SECONDS if to_people else CHECK_SECONDS,
            renew=to_people,
            clock=clock,
            fresh=news.fresh,
            trouble="the agent has not reported the GPUs to the controller yet",
            pause=pause,
            sleep=sleep,
        )

    def ready(self) -> Readiness:
        """Ready when the last change reached a controller that chooses. A page that shows less is no reason to take the node's
        agent out of service.
        """
        trouble = self._lease.trouble if self._chosen_of else ""
        return Readiness(not trouble, trouble)

    async def run(self) -> None:
        """Keep the lease true until cancelled. The lease stays: without a reporter the node's shares are not free, and pages show
        since when the node is silent.
        """
        news = self._news
        others: tuple[LatestValue[Any], ...] = (news.refused, news.faults, news.layouts)
        await self._lease.run((news.snapshots, news.node, news.backend), others)

    def about(self) -> KubeNode | None:
        """The node, if it is to be reported; None otherwise. People get reports only while the driver answers."""
        node = self._news.node.value
        wanted = self._chosen_of or (self._to_people and self._news.fresh())
        return node if node is not None and node.uid and wanted else None

    def lease_name(self, node: KubeNode) -> str:
        """The name of the lease with the node's report."""
        return lease_name(REPORT, node.name)

    def read(self, lease: Lease) -> _Said | None:
        """What the lease says; None when it cannot be read."""
        try:
            return _said(told_from_lease(lease))
        except UsageError:
            return None

    async def now(self, node: KubeNode, before: _Said | None) -> _Said:
        """What to report now; devices withheld before influence which are withheld now."""
        offer = None if before is None else before.told.offer
        sizes = await self._sizes(node) if self._chosen_of else None
        return await asyncio.to_thread(self._to_say, node, sizes, () if offer is None else offer.withheld)

    async def to_lease(self, node: KubeNode, said: _Said, before: Lease | None, *, changed: bool) -> Lease:
        """The next generation after `before`, even where the rest of `before` cannot be read."""
        generation, use = (0 if before is None else generation_of(before)) + changed, ""
        if self._to_people:
            use = self._news.use.value if self._news.use.synced else "" if before is None else use_of_lease(before)
        report = replace(said.told, generation=generation, use=use)
        return await asyncio.to_thread(told_to_lease, report, (node.name, node.uid))

    @property
    def _chosen_of(self) -> bool:
        """Whether a controller chooses of the node's GPUs."""
        return self._news.backend.synced and self._news.backend.value is AllocationBackend.GATES

    async def _sizes(self, node: KubeNode) -> tuple[KeptRoom, ...]:
        """The room that the administrator has the node keep; none, with an event, where the annotation is invalid."""
        sizes, problem = kept_sizes(node.annotations)
        if problem and problem != self._unknown_size:
            await self._say_event(node, "KeptRoomUnknown", problem)
        self._unknown_size = problem
        return sizes

    def _to_say(self, node: KubeNode, sizes: Collection[KeptRoom] | None, before: Collection[WithheldDevice]) -> _Said:
        """`sizes` is None where no controller chooses."""
        news = self._news
        snapshot, offer = news.snapshots.value, None
        view = told(snapshot.view, snapshot.draining)
        if sizes is not None:
            mode = mode_in_force(node.labels)
            offered = offered_view(view, mode)
            kept = withheld_places(offered, mode, faulty(news.faults.value, view.node), tuple(sizes), before)
            offer = ShareOffer(mode, kept, news.refused.value if news.refused.synced else {})
        if not self._to_people:
            return _said(ViewReport(node.name, bare(view), offer=offer, to_people=False))
        layouts = news.layouts.value if news.layouts.synced else None
        waiting = marked(snapshot.view, snapshot.draining)
        return _said(ViewReport(node.name, view, layouts=layouts, marked=waiting, offer=offer))


def _said(told: ViewReport) -> _Said:
    return _Said(told, replace(told, view=steady(told.view), short=False, generation=0, use=""))
