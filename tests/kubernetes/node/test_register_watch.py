"""Another process writes into the register: the inventory looks again, and not for its own writes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from tests.kubernetes.waiting import until
from tranche.core.allocation import NodeView
from tranche.core.state import NodeState
from tranche.kubernetes.node.inventory import Inventory, RegisterWatch
from tranche.node.store import chronicle
from tranche.node.store.ledger import Ledger


def write(ledger: Ledger) -> None:
    with ledger.write() as db:
        chronicle.released(db, 0.0, "nobody", "test")


def test_the_writes_of_others_are_noticed_and_ones_own_are_not(tmp_path: Path) -> None:
    async def run() -> None:
        own, other = Ledger(tmp_path / "ledger.db"), Ledger(tmp_path / "ledger.db")
        looks = 0

        async def look() -> NodeView:
            nonlocal looks
            looks += 1
            return NodeView(NodeState((), driver_version=str(looks)))

        inventory = Inventory(look, clock=lambda: 0.0, period=3600.0)
        watch = RegisterWatch(own.version, inventory, period=0.001)
        tasks = [asyncio.create_task(inventory.run()), asyncio.create_task(watch.run())]
        await until(lambda: looks == 1)
        write(own)
        await asyncio.to_thread(own.version)
        for expected in (2, 3):
            write(other)
            await until(lambda expected=expected: looks == expected)  # type: ignore[misc]
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(run())
