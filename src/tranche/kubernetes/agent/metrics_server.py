"""The component that serves /metrics: what the parts already know, and gauges read on each scrape.

A scrape never waits long for the driver or the ledger, and never reads what the inventory reads: reads run on threads of their
own. While both hang, the agent keeps working and the scrape reports how old its values are.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from importlib.metadata import version
from typing import Generic, TypeVar

from tranche.core.errors import TrancheError
from tranche.core.readings import GpuReading
from tranche.hardware.gpu_events import GpuEvent, GpuEventKind
from tranche.hardware.nvml_errors import NVML_ERRORS
from tranche.hardware.nvml_gauges import NvmlGaugeReader
from tranche.kubernetes.component import Component, Readiness
from tranche.kubernetes.latest_value import within
from tranche.kubernetes.mig_manager.manager import MigManager
from tranche.kubernetes.mig_manager.state import REASON_LABEL, STATE_LABEL, asking, wanted_layout
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.serving.http_server import HttpResponse, HttpServer
from tranche.metrics.exposition import exposed, wants_openmetrics
from tranche.metrics.facts import AgentFacts, LayoutFacts, NodeFacts, XidRecord
from tranche.metrics.machine import facts_of_ledger
from tranche.metrics.samples import MetricNameSet, named_samples

Seen = TypeVar("Seen")


class BackgroundReader(Generic[Seen]):
    """For use from one event loop. Its daemon thread does not keep the process from exiting."""

    def __init__(self, name: str, *, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._last: tuple[Seen, float] | None = None
        self._looking: asyncio.Event | None = None
        self._failure = ""
        self._thread: threading.Thread | None = None

    async def latest(self, look: Callable[[], Seen], patience: float) -> tuple[Seen, float] | None:
        """Read, and return the newest result with when its read began, in seconds of the clock; waits at most `patience` seconds.
        None when no read ever succeeded.

        While a read hangs, no other begins, and callers get the last result with its age.
        """
        if self._looking is None:
            self._looking = asyncio.Event()
            self._thread = threading.Thread(
                target=self._look, args=(look, asyncio.get_running_loop()), name=self._name, daemon=True
            )
            self._thread.start()
        await within(patience, self._looking.wait())
        return self._last

    def join(self) -> None:
        """Wait for a running read to end, if any. Callable from any thread; may block forever."""
        if self._thread is not None:
            self._thread.join()

    def _look(self, look: Callable[[], Seen], loop: asyncio.AbstractEventLoop) -> None:
        begun = self._clock()
        seen: tuple[Seen, float] | None = None
        failure = ""
        try:
            seen = look(), begun
        except TrancheError as error:
            failure = str(error)
        except Exception as defect:
            failure = f"{type(defect).__name__}: {defect}"
            _log.exception("%s failed", self._name)
        with suppress(RuntimeError):  # the loop has ended in the meantime
            loop.call_soon_threadsafe(self._done, seen, failure)

    def _done(self, seen: tuple[Seen, float] | None, failure: str) -> None:
        if seen is not None:
            self._last = seen
        if failure != self._failure:
            self._failure = failure
            if failure:
                _log.warning("%s failed", self._name, extra={"error": failure})
        if self._looking is not None:
            self._looking.set()
            self._looking = None


_OLDEST_READING_SECONDS = 120.0
_SAID_AGAIN_SECONDS = 1.0
"""Requests within this time get the same text: rendering it takes time on the agent's event loop, and anyone may ask."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where metrics are served and under which names, and how many seconds a scrape may wait for driver and ledger.

    `default_layout` is the layout of a node whose label names none.
    """

    host: str
    port: int
    names: MetricNameSet = MetricNameSet.TRANCHE
    patience: float = 1.0
    default_layout: str = ""


class MetricsServer:
    """A component of an agent with these `parts`; without the MIG manager the layouts are unknown. `readiness` is that of all
    components.

    `clock` is monotonic, in seconds.
    """

    name = "metrics"

    def __init__(
        self,
        services: NodeContext,
        settings: MetricsSettings,
        parts: Sequence[Component],
        *,
        readiness: Callable[[], Mapping[str, Readiness]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services = services
        self._settings = settings
        self._readiness = readiness
        self._manager = next((part for part in parts if isinstance(part, MigManager)), None)
        self._clock = clock
        self._gauges = NvmlGaugeReader(clock)
        self._readings: BackgroundReader[tuple[GpuReading, ...]] = BackgroundReader("gauges", clock=clock)
        self._ledger: BackgroundReader[NodeFacts] = BackgroundReader("ledger-metrics", clock=clock)
        self._xids: dict[tuple[str, int], XidRecord] = {}
        self._server: HttpServer | None = None
        self._one_at_a_time = asyncio.Lock()
        self._said: dict[bool, tuple[float, HttpResponse]] = {}  # when and what, in OpenMetrics or not

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        return self._server.port

    def ready(self) -> Readiness:
        """Ready while it listens."""
        return Readiness(self._server is not None, "" if self._server is not None else "not listening yet")

    async def run(self) -> None:
        """Serve until cancelled; UsageError when the port is taken."""
        server = HttpServer(self._answer)
        await server.start(self._settings.host, self._settings.port, option="--metrics-port")
        self._server = server
        _log.info("serving metrics", extra={"metrics_port": server.port})
        try:
            with self._services.gpu_events.listen() as events:
                while True:
                    self._note(await events.get())
        finally:
            self._server = None
            server.stop()

    def join(self) -> None:
        """Wait for its pending reads of the driver and the ledger. Callable from any thread; may block forever."""
        self._readings.join()
        self._ledger.join()

    def _note(self, event: GpuEvent) -> None:
        if event.kind is GpuEventKind.XID:
            place = (event.gpu_uuid, event.xid)
            before = self._xids.get(place, XidRecord(0, 0.0))
            self._xids[place] = XidRecord(before.count + 1, time.time())

    async def _answer(self, path: str, headers: Mapping[str, str]) -> HttpResponse:
        if path != "/metrics":
            return HttpResponse(HTTPStatus.NOT_FOUND, b"see /metrics\n", "text/plain")
        in_openmetrics = wants_openmetrics(headers.get("accept", ""))
        async with self._one_at_a_time:
            said_at, said = self._said.get(in_openmetrics, (float("-inf"), HttpResponse(HTTPStatus.OK)))
            if self._clock() - said_at >= _SAID_AGAIN_SECONDS:
                families, samples = named_samples(await self.facts(), self._settings.names, self._services.node_name)
                said = HttpResponse(HTTPStatus.OK, *exposed(families, samples, in_openmetrics=in_openmetrics))
                self._said[in_openmetrics] = self._clock(), said
        return said

    async def facts(self) -> NodeFacts:
        """Everything known now."""
        inventory = self._services.inventory
        view = inventory.latest.value.view if inventory.latest.synced else None
        host, patience = self._services.host, self._settings.patience
        async with asyncio.TaskGroup() as looks:
            ledger = looks.create_task(self._ledger.latest(lambda: facts_of_ledger(host, time.time()), patience))
            gauges = None
            if view is not None:
                node = view.node
                gauges = looks.create_task(self._readings.latest(lambda: self._gauges.read(node), patience))
        known = ledger.result()
        found = NodeFacts(now=time.time(), version=version("tranche-gpu")) if known is None else known[0]
        found = replace(found, now=time.time(), nvml_errors=NVML_ERRORS.counts(), agent=self._agent())
        if view is not None:
            found = replace(found, view=view, view_age=inventory.age)
        read = None if gauges is None else gauges.result()
        if read is not None:
            age = max(self._clock() - read[1], 0.0)
            fresh = read[0] if age <= _OLDEST_READING_SECONDS else ()
            found = replace(found, readings=fresh, readings_age=age)
        return found

    def _agent(self) -> AgentFacts:
        components = {name: readiness.ready for name, readiness in self._readiness().items()}
        return AgentFacts(components, self._layout(), dict(self._xids))

    def _layout(self) -> LayoutFacts | None:
        node = self._services.node.value if self._services.node.synced else None
        inventory = self._services.inventory.latest
        if node is None or not inventory.synced:
            return None
        name = wanted_layout(asking(node, self._settings.default_layout, inventory.value.view.node))
        if not name:
            return None
        state, reason = node.labels.get(STATE_LABEL, ""), node.labels.get(REASON_LABEL, "")
        return LayoutFacts(name, state, reason, None if self._manager is None else self._manager.mismatched())
