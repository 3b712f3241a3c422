"""The agent's part that reports its node in a lease: to people, where that is on, and to a controller that chooses.

Where people are to be told, another part reads the GPUs' gauges once a minute and keeps their means over days. It stores them in
the node's report and continues from there after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tranche.core.allocation import WithheldDevice
from tranche.core.errors import TrancheError, UsageError
from tranche.core.readings import GpuReading
from tranche.core.state import NodeState
from tranche.documents.blocks import Document
from tranche.documents.gauge_samples import GaugeSample, mean_of, sample_of
from tranche.documents.overview import reading_document
from tranche.hardware.nvml_gauges import NvmlGaugeReader
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.claims.node_mode import mode_in_force
from tranche.kubernetes.component import Component, Readiness
from tranche.kubernetes.devices.taints import KeptRoom, kept_sizes
from tranche.kubernetes.gated.leases import offered_view, withheld_places
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.health import faulty
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.serving.supervisor import LookResult, Reconciler
from tranche.kubernetes.telling.told_view import (
    RENEWED_SECONDS,
    REPORT,
    LayoutReport,
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
from tranche.kubernetes.telling.use_report import (
    LINE_SECONDS,
    NO_USE,
    READ_SECONDS,
    UseReport,
    use_from_text,
    use_to_text,
)
from tranche.planning.layouts.named_layouts import LayoutList

CHECK_SECONDS = 300.0
"""How often the lease is read again where it is not renewed: somebody may have deleted it."""
PAUSE_SECONDS = 1.0
_RETRY_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Said:
    """What is reported, and the part of it whose changes are news: changed amounts alone are not."""

    told: ViewReport = field(compare=False)
    news: ViewReport


@dataclass(frozen=True, slots=True)
class _Standing:
    """The lease as it stands, what it says (None if unknown), and when it was read or written, by `clock`."""

    lease: Lease | None
    says: _Said | None
    at: float


class NodeReporter:
    """A component: writes the lease after changes, at most once in `pause` seconds; rereads it after a conflict or a failure.

    With `to_people` it writes at least every `RENEWED_SECONDS` while the driver answers, so that nobody mistakes an old report
    for a current one; while it does not answer, only news is written, and the lease keeps its age. Without `to_people`, the
    report is only for a controller that chooses of the node's GPUs.

    `told` is what the agent makes of the layout label, left out until the `layouts` of its MIG manager are known. `use` is the
    GPUs' use as annotation text; until there is one, the previously reported one stays. `clock` is monotonic, in seconds.
    """

    name = "report"

    def __init__(
        self,
        services: NodeContext,
        told: LayoutReport,
        layouts: LatestValue[LayoutList],
        use: LatestValue[str],
        *,
        to_people: bool,
        clock: Callable[[], float] = time.monotonic,
        pause: float = PAUSE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._services = services
        self._told = told
        self._layouts = layouts
        self._use = use
        self._to_people = to_people
        self._every = RENEWED_SECONDS if to_people else CHECK_SECONDS
        self._clock = clock
        self._pause = pause
        self._standing: _Standing | None = None
        self._reconciler = Reconciler(
            _log,
            "cannot report on the node",
            trouble="the agent has not reported the GPUs to the controller yet",
            longest=_RETRY_SECONDS,
            sleep=sleep,
        )

    def ready(self) -> Readiness:
        """Ready when the last change reached a controller that chooses. A page that shows less is no reason to take the node's
        agent out of service.
        """
        trouble = self.trouble if self._chosen_of else ""
        return Readiness(not trouble, trouble)

    @property
    def trouble(self) -> str:
        """Why the lease does not say what it should, "" when it does."""
        return self._reconciler.trouble

    async def run(self) -> None:
        """Keep the lease true until cancelled. The lease stays: without a reporter the node's shares are not free, and pages show
        since when the node is silent.
        """
        self._standing = None
        services = self._services
        others: tuple[LatestValue[Any], ...] = (services.refused, services.device_health.faults, self._layouts)
        needed = (services.inventory.latest, services.node, services.backend)
        await self._reconciler.run(self._look, needed, (each.changes() for each in others))

    async def _look(self) -> LookResult:
        if (node := self.about()) is not None:
            before, self._standing = self._standing, None  # unknown after a failure
            self._standing = await self._written(node, before)
        return LookResult(self._pause, self._left(self._standing))

    def _left(self, standing: _Standing | None) -> float:
        """How long until the lease is due without changes: it may have been deleted, or is to be renewed."""
        return self._every if standing is None else max(0.0, standing.at + self._every - self._clock())

    async def _written(self, node: KubeNode, standing: _Standing | None) -> _Standing | None:
        """The lease as it stands once it says what it should; None if someone else has written it meanwhile."""
        leases, fresh, due = self._services.leases, self._fresh, standing is None or not self._left(standing)
        renew = self._to_people and fresh
        if standing is None or (due and not renew):
            lease = await leases.get(lease_name(REPORT, node.name))
            standing = _Standing(lease, None if lease is None else self.read(lease), self._clock())
        at = self._clock()
        said = await self.now(node, standing.says)
        changed = said != standing.says
        if not changed and not (due and renew):
            return standing
        wanted = await self.to_lease(node, said, standing.lease, changed=changed)
        if standing.lease is None:
            answer = await leases.create(wanted)
        else:
            before = standing.lease
            wanted = replace(wanted, version=before.version, renewed=before.renewed)
            answer = await leases.replace(wanted, renew=fresh or not before.renewed)
        if answer is None:
            self._reconciler.wake()  # someone else has written or removed it: read it again
        return None if answer is None else _Standing(answer, said, at)

    def about(self) -> KubeNode | None:
        """The node, if it is to be reported; None otherwise. People get reports only while the driver answers."""
        node = self._services.node.value
        wanted = self._chosen_of or (self._to_people and self._fresh)
        return node if node is not None and node.uid and wanted else None

    def read(self, lease: Lease) -> _Said | None:
        """What the lease says; None when it cannot be read."""
        try:
            return _said(told_from_lease(lease))
        except UsageError:
            return None

    async def now(self, node: KubeNode, before: _Said | None) -> _Said:
        """What to report now; devices withheld before influence which are withheld now."""
        offer = None if before is None else before.told.offer
        sizes = None
        if self._chosen_of:
            sizes, problem = kept_sizes(node.annotations)
            await self._services.api.warn_of_node(node, "KeptRoomUnknown", problem)
        return await asyncio.to_thread(self._to_say, node, sizes, () if offer is None else offer.withheld)

    async def to_lease(self, node: KubeNode, said: _Said, before: Lease | None, *, changed: bool) -> Lease:
        """The next generation after `before`, even where the rest of `before` cannot be read."""
        generation, use = (0 if before is None else generation_of(before)) + changed, ""
        if self._to_people:
            use = self._use.value if self._use.synced else "" if before is None else use_of_lease(before)
        report = replace(said.told, generation=generation, use=use)
        return await asyncio.to_thread(told_to_lease, report, (node.name, node.uid))

    @property
    def _fresh(self) -> bool:
        """Whether the latest look at the GPUs is current."""
        return self._services.inventory.ready().ready

    @property
    def _chosen_of(self) -> bool:
        """Whether a controller chooses of the node's GPUs."""
        backend = self._services.backend
        return backend.synced and backend.value is AllocationBackend.GATES

    def _to_say(self, node: KubeNode, sizes: Collection[KeptRoom] | None, before: Collection[WithheldDevice]) -> _Said:
        """`sizes` is None where no controller chooses."""
        services = self._services
        snapshot, offer = services.inventory.latest.value, None
        view = told(snapshot.view, snapshot.draining)
        if sizes is not None:
            mode = mode_in_force(node.labels)
            offered = offered_view(view, mode)
            kept = withheld_places(
                offered, mode, faulty(services.device_health.faults.value, view.node), tuple(sizes), before
            )
            offer = ShareOffer(mode, kept, services.refused.value)
        if not self._to_people:
            return _said(ViewReport(node.name, bare(view), offer=offer, to_people=False))
        layouts: LayoutReport | None = self._told
        if self._told.managed:
            layouts = replace(self._told, offer=self._layouts.value) if self._layouts.synced else None
        waiting = marked(snapshot.view, snapshot.draining)
        return _said(ViewReport(node.name, view, layouts=layouts, marked=waiting, offer=offer))


def _said(told: ViewReport) -> _Said:
    return _Said(told, replace(told, view=steady(told.view), short=False, generation=0, use=""))


_SET_SECONDS = 10.0
"""If a clock drifts by more than this between two readings, somebody set it."""


class GpuUseWatch(Component):
    """A component: after each reading, publishes the annotation's text in `latest`. Charts are no reason to take the node's agent
    out of service, so it is always ready.

    It never holds up other parts: while the driver hangs, it reads nothing and leaves a gap. `now` is seconds since the epoch;
    `clock` is monotonic. If the two drift apart, the system clock was set, and the time of earlier samples is unknown.
    """

    name = "use"

    def __init__(
        self,
        services: NodeContext,
        *,
        read: Callable[[NodeState], Sequence[GpuReading]] | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._services = services
        self.latest: LatestValue[str] = LatestValue()
        self._read = read or NvmlGaugeReader(time.monotonic).read
        self._now = now
        self._clock = clock
        self._sleep = sleep

    async def run(self) -> None:
        """Load what was recorded before, then record until cancelled."""
        await self._services.inventory.latest.first()
        use, since_line, offset = await self._kept(), list[GaugeSample](), self._now() - self._clock()
        while True:
            node = self._services.inventory.latest.value.view.node
            readings = _documents(node, await asyncio.to_thread(self._read, node))
            now = self._now()
            before, offset = offset, now - self._clock()
            if abs(offset - before) > _SET_SECONDS:
                since_line = []
            if since_line and since_line[0].taken // LINE_SECONDS != now // LINE_SECONDS:
                use, since_line = use.with_line(mean_of(since_line, since_line[-1].taken)), []
            if readings:
                since_line.append(sample_of(now, readings))
            use = UseReport(now, readings, use.lines, use.long_lines)
            self.latest.publish(await asyncio.to_thread(use_to_text, use))
            await self._sleep(READ_SECONDS)

    async def _kept(self) -> UseReport:
        """The use in the node's report; NO_USE where it holds none or cannot be read."""
        said = ""
        while True:
            try:
                lease = await self._services.leases.get(lease_name(REPORT, self._services.node_name))
                break
            except TrancheError as error:
                if str(error) != said:
                    _log.warning("cannot read the recorded GPU use yet", extra={"error": str(error)})
                said = str(error)
                await self._sleep(_RETRY_SECONDS)
        try:
            text = "" if lease is None else use_of_lease(lease)
            return use_from_text(text) if text else NO_USE
        except TrancheError as error:
            _log.warning(
                "cannot read the recorded GPU use: recording starts again from zero", extra={"error": str(error)}
            )
            return NO_USE


def _documents(node: NodeState, readings: Iterable[GpuReading]) -> tuple[Document, ...]:
    """The readings with their slices' placements: by the time somebody looks, another slice may have the same number."""
    places = {(gpu.uuid, each.id): each.placement for gpu in node for each in gpu.instances}
    found = []
    for reading in map(reading_document, readings):
        slices = [
            {**each, "placement": {"start": place.start, "size": place.size}}
            for each in reading["slices"]
            if (place := places.get((reading["gpuUUID"], each["gpuInstanceId"]))) is not None
        ]
        found.append({**reading, "slices": slices})
    return tuple(found)
