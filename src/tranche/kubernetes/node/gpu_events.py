"""Components that pass the driver's reports on, and that track the devices that reported an error fatal to programs.

The inventory gets the reports too, and looks again. Faulty are GPUs, or the instances that the driver named; they recover later.
A node has one health watch, and every front end asks it, so all refuse the same devices.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tranche.hardware.gpu_events import GpuEvent, GpuEventStream
from tranche.kubernetes.component import Component, Readiness
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.health import FaultyDevices, XidPolicy
from tranche.kubernetes.node.inventory import Inventory, Snapshot

_WAIT_SECONDS = 0.25
_BACKLOG = 1000

_log = logging.getLogger(__name__)

Gpus = frozenset[tuple[str, str]]


class GpuEventWatch:
    """Listens to every GPU of the inventory. Restarts when a GPU comes, goes, or changes its MIG mode, which may mean a reset."""

    name = "gpu-events"

    def __init__(self, open_stream: Callable[[list[str]], GpuEventStream], inventory: Inventory) -> None:
        """`open_stream` gets GPU UUIDs; it and the stream block, and run on a thread."""
        self._open_stream = open_stream
        self._inventory = inventory
        self._listeners: list[asyncio.Queue[GpuEvent]] = []
        self._listening = False

    def ready(self) -> Readiness:
        """Ready while it listens."""
        return Readiness(self._listening, "" if self._listening else "not listening to the driver's events yet")

    @contextmanager
    def listen(self) -> Iterator[asyncio.Queue[GpuEvent]]:
        """A queue that gets each report from now on; beyond a thousand waiting reports, the oldest go."""
        queue: asyncio.Queue[GpuEvent] = asyncio.Queue(_BACKLOG)
        self._listeners.append(queue)
        try:
            yield queue
        finally:
            self._listeners.remove(queue)

    async def run(self) -> None:
        """Listen until cancelled; raises the driver's error if that is impossible."""
        loop = asyncio.get_running_loop()
        await self._inventory.latest.first()
        while True:
            gpus = _gpus(self._inventory.latest.value)

            def other(now: Snapshot, gpus: Gpus = gpus) -> bool:
                return _gpus(now) != gpus

            stop = threading.Event()
            pump = asyncio.create_task(asyncio.to_thread(self._pump, gpus, stop, loop))
            moved = asyncio.create_task(self._inventory.latest.until(other))
            try:
                await asyncio.wait({pump, moved}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop.set()
                moved.cancel()
            await pump

    def _pump(self, gpus: Gpus, stop: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        """Runs on its own thread: only this thread may wait on the stream, so it also opens and closes it."""
        stream = self._open_stream(sorted(uuid for uuid, _ in gpus))
        try:
            self._listening = True
            while not stop.is_set():
                event = stream.wait(_WAIT_SECONDS)
                if event is not None:
                    loop.call_soon_threadsafe(self._deliver, event)
        finally:
            self._listening = False
            stream.close()

    def _deliver(self, event: GpuEvent) -> None:
        _log.info(
            "driver event",
            extra={
                "event_kind": event.kind,
                "gpu": event.gpu_uuid,
                "xid": event.xid,
                "instance": event.gpu_instance_id,
            },
        )
        self._inventory.poke()
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)


def _gpus(snapshot: Snapshot) -> Gpus:
    return frozenset((gpu.uuid, gpu.mode) for gpu in snapshot.view.node if not gpu.lost)


_RECOVERY_SECONDS = 5.0


class DeviceHealthWatch(Component):
    """A component: derives the faults from the driver's events, whose own component says whether it listens.

    `needs_recovery` says whether the driver wants a GPU reset, and blocks; it is asked about each faulty GPU every
    `recovery_seconds`. `policy` says which errors count as faults. `clock` is monotonic, in seconds.
    """

    name = "device-health"

    def __init__(
        self,
        events: GpuEventWatch,
        inventory: Inventory,
        *,
        needs_recovery: Callable[[str], bool],
        policy: Callable[[], XidPolicy],
        clock: Callable[[], float],
        recovery_seconds: float = _RECOVERY_SECONDS,
    ) -> None:
        self.faults = LatestValue(FaultyDevices())
        self._events = events
        self._inventory = inventory
        self._needs_recovery = needs_recovery
        self._policy = policy
        self._clock = clock
        self._recovery_seconds = recovery_seconds

    async def run(self) -> None:
        """Listen until cancelled."""
        with self._events.listen() as reports:
            await self._inventory.latest.first()
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._recovery_seconds if self.faults.value.sick else None):
                        event = await reports.get()
                        node = self._inventory.latest.value.view.node
                        self.faults.publish(self.faults.value.admit(event, self._policy(), node, self._clock()))
                        continue
                await self._discharge()

    async def _discharge(self) -> None:
        quiet = self.faults.value.quiet(self._clock())
        well = {uuid for uuid in quiet if not await asyncio.to_thread(self._needs_recovery, uuid)}
        if well:
            self.faults.publish(self.faults.value.discharge(well, self._clock()))
