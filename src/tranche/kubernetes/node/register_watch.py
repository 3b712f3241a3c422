"""A component that has the inventory look again when another process of the machine wrote into the register.

What a command takes must leave the device plugin's offers soon, and what it gives back must return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tranche.kubernetes.component import Readiness
from tranche.kubernetes.node.inventory import Inventory

_PERIOD_SECONDS = 1.0


class RegisterWatch:
    """Asks for the register's version once a second; `version` blocks and runs on a thread."""

    name = "register-watch"

    def __init__(self, version: Callable[[], int], inventory: Inventory, *, period: float = _PERIOD_SECONDS) -> None:
        self._version = version
        self._inventory = inventory
        self._period = period

    def ready(self) -> Readiness:
        """Always: whether the register can be read is the inventory's to say."""
        return Readiness(True)

    async def run(self) -> None:
        """Watch until cancelled; LedgerUnavailable when the register cannot be asked."""
        seen = await asyncio.to_thread(self._version)
        while True:
            await asyncio.sleep(self._period)
            now = await asyncio.to_thread(self._version)
            if now != seen:
                seen = now
                self._inventory.poke()
