"""Tracks devices that reported an error fatal to programs: GPUs, or the instances that the driver named. They recover later.

A node has one watch, and every front end asks it, so all refuse the same devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tranche.kubernetes.component import Readiness
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.gpu_events import GpuEventWatch
from tranche.kubernetes.node.health import FaultyDevices, XidPolicy
from tranche.kubernetes.node.inventory import Inventory

_RECOVERY_SECONDS = 5.0


class DeviceHealthWatch:
    """A component: derives the faults from the driver's events.

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
        self.faults: LatestValue[FaultyDevices] = LatestValue()
        self.faults.publish(FaultyDevices())
        self._events = events
        self._inventory = inventory
        self._needs_recovery = needs_recovery
        self._policy = policy
        self._clock = clock
        self._recovery_seconds = recovery_seconds

    def ready(self) -> Readiness:
        """Always ready: the component of the driver's events says whether it listens."""
        return Readiness(True)

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
