"""The agent's part that reads the GPUs' gauges once a minute and keeps their means over days, where people are to be told.

It stores them in the node's report and continues from there after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from tranche.core.errors import TrancheError
from tranche.core.readings import GpuReading
from tranche.core.state import NodeState
from tranche.documents.blocks import Document
from tranche.documents.gauge_samples import GaugeSample, mean_of, sample_of
from tranche.documents.overview import reading_document
from tranche.hardware.nvml_gauges import NvmlGaugeReader
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.telling.told_view import REPORT, lease_name, use_of_lease
from tranche.kubernetes.telling.use_report import (
    LINE_SECONDS,
    NO_USE,
    READ_SECONDS,
    UseReport,
    use_from_text,
    use_to_text,
)

_RETRY_SECONDS = 5.0
_SET_SECONDS = 10.0
"""If a clock drifts by more than this between two readings, somebody set it."""

_log = logging.getLogger(__name__)


class GpuUseWatch:
    """A component: after each reading, publishes the annotation's text in `latest`.

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

    def ready(self) -> Readiness:
        """Always ready: charts are no reason to take the node's agent out of service."""
        return Readiness(True)

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
            _log.warning("cannot read the recorded GPU use: it starts again from zero", extra={"error": str(error)})
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
