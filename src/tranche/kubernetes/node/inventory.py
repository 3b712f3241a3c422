"""The node's GPUs and slices, the pods that hold them, and what is about to go.

One `Inventory` serves the device plugin, the MIG manager and the feature labels. A change of the GPUs goes through
`Inventory.mark_draining`: what should go is marked first, so that the device plugin gives it to no new pod; then the register is
settled. What is held after that stays held, and what is free stays free until the marks are replaced.

It looks again when another process of the machine wrote to the register: what a command takes must leave the device plugin's
offers soon, and what it gives back must return.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.kubernetes.component import Component, Readiness
from tranche.kubernetes.latest_value import LatestValue, within

DEFAULT_PERIOD = 10.0

_SLOW_READ_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at the node.

    `view` is the hardware and the register, including pods. `draining` are UUIDs of devices that a change in progress may take
    away.
    """

    view: NodeView
    draining: frozenset[str] = frozenset()


class Inventory:
    """A component that keeps the latest snapshot fresh: every `period` seconds, when `poke` is called, and after each change.

    `look` reads the machine and the register, after everything known of pods has been entered. `clock` is monotonic, in seconds.
    """

    name = "inventory"

    def __init__(
        self,
        look: Callable[[], Awaitable[NodeView]],
        *,
        clock: Callable[[], float],
        period: float = DEFAULT_PERIOD,
    ) -> None:
        self.latest: LatestValue[Snapshot] = LatestValue()
        self._look = look
        self._clock = clock
        self._period = period
        self._wanted = asyncio.Event()
        self._reading = asyncio.Lock()
        self._draining: frozenset[str] = frozenset()
        self._lifting: dict[str, object] = {}  # marks that go with the next look, each with its call's token
        self._marks_are_known = asyncio.Event()
        self._marks_are_known.set()
        self._failure = "the GPUs have not been read yet"
        self._read_at = 0.0
        self._ending = False

    def ready(self) -> Readiness:
        """Ready when the last refresh succeeded, and none has been hanging since: the driver may not answer at all."""
        if self._failure:
            return Readiness(False, self._failure)
        age = self._clock() - self._read_at
        if age > 3 * self._period + _SLOW_READ_SECONDS:
            return Readiness(
                False, f"the GPUs were last read {age:.0f} s ago: the driver or the kubelet does not answer"
            )
        return Readiness(True)

    @property
    def age(self) -> float:
        """The age of the latest snapshot in seconds; 0 before the first."""
        return self._clock() - self._read_at if self.latest.synced else 0.0

    def poke(self) -> None:
        """Refresh the inventory soon."""
        self._wanted.set()

    async def current(self) -> Snapshot:
        """The latest snapshot, after any look that was asked for: what was given to a pod before this call is in it.

        Raises as `refresh` does.
        """
        if self._wanted.is_set() or self._reading.locked():
            return await self.refresh()
        return self.latest.value

    async def run(self) -> None:
        """Refresh until cancelled. A failure leads to another try, and is logged when it begins and when it is over."""
        logged = ""
        while True:
            self._wanted.clear()
            try:
                await self.refresh()
                if logged:
                    _log.info("inventory refreshed again")
                logged = ""
            except TrancheError as error:
                if str(error) != logged:
                    _log.warning("cannot refresh the inventory", extra={"reason": error.reason, "error": str(error)})
                logged = str(error)
            await within(self._period, self._wanted.wait())

    async def refresh(self) -> Snapshot:
        """Read hardware and register now, and publish.

        Passes on the errors of the driver, the ledger and the kubelet; the last snapshot then stands.
        """
        async with self._reading:
            lifting = dict(self._lifting)
            try:
                view = await self._look()
            except TrancheError as error:
                self._failure = str(error)
                raise
            if not self._ending:
                self._lifting = {uuid: word for uuid, word in self._lifting.items() if lifting.get(uuid) is not word}
            self._failure = ""
            self._read_at = self._clock()
            snapshot = Snapshot(view, self.draining)
            self.latest.publish(snapshot)
            return snapshot

    @property
    def draining(self) -> frozenset[str]:
        """The devices that a change in progress may take away: Allocate must refuse them."""
        return self._draining | self._lifting.keys()

    def keep_marks(self) -> None:
        """Take back no more marks: the process is about to end, and a change may still be running on a thread."""
        self._ending = True

    def mark_draining(self, device_uuids: frozenset[str]) -> bool:
        """Mark exactly those devices as about to go. Returns whether that is a change.

        New marks hold at once: what a later `refresh` shows as free stays free. Marks that are taken back go with the next look
        at the GPUs, because until then no one knows which of the devices are left.
        """
        self._marks_are_known.set()
        if device_uuids == self._draining:
            return False
        word = object()
        lifting = {**self._lifting, **dict.fromkeys(self._draining, word)}
        self._lifting = {uuid: each for uuid, each in lifting.items() if uuid not in device_uuids}
        self._draining = device_uuids
        if self.latest.synced:
            self.latest.publish(replace(self.latest.value, draining=self.draining))
        if self._lifting:
            self.poke()
        return True

    def expect_marks(self) -> None:
        """Announce, before anything runs, that someone will call `mark_draining` as soon as it knows what should go."""
        self._marks_are_known.clear()

    async def marks_known(self, patience: float) -> None:
        """Return once the first marks are known, but after that many seconds at the latest."""
        await within(patience, self._marks_are_known.wait())


_PERIOD_SECONDS = 1.0


class RegisterWatch(Component):
    """Asks for the register's version once a second; `version` blocks and runs on a thread. The inventory says whether the
    register is readable.
    """

    name = "register-watch"

    def __init__(self, version: Callable[[], int], inventory: Inventory, *, period: float = _PERIOD_SECONDS) -> None:
        self._version = version
        self._inventory = inventory
        self._period = period

    async def run(self) -> None:
        """Watch until cancelled; LedgerUnavailable when the register does not answer."""
        seen = await asyncio.to_thread(self._version)
        while True:
            await asyncio.sleep(self._period)
            now = await asyncio.to_thread(self._version)
            if now != seen:
                seen = now
                self._inventory.poke()
