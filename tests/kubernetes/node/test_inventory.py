"""The inventory: marking before reading, failures, and looking again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from tests.kubernetes.waiting import until
from tranche.core.allocation import NodeView
from tranche.core.errors import HardwareError
from tranche.core.state import NodeState
from tranche.kubernetes.node.inventory import Inventory


@dataclass
class World:
    """An inventory with hardware that can fail, and a clock; `asked` is called at each look."""

    asked: Callable[[], None] = lambda: None
    now: float = 0.0
    looks: int = 0
    broken: bool = False

    async def look(self) -> NodeView:
        self.asked()
        self.looks += 1
        await asyncio.sleep(0)
        if self.broken:
            raise HardwareError("no driver")
        return NodeView(NodeState((), driver_version=str(self.looks)))

    def inventory(self, period: float = 3600.0) -> Inventory:
        return Inventory(self.look, clock=lambda: self.now, period=period)


def test_devices_are_marked_before_the_register_is_read_and_free_again_after() -> None:
    async def run() -> None:
        world = World()
        inventory = world.inventory()
        await inventory.refresh()
        marked_when_asked: list[bool] = []
        world.asked = lambda: marked_when_asked.append(
            "MIG-a" in inventory.draining and "MIG-a" in inventory.latest.value.draining
        )
        assert inventory.mark_draining(frozenset({"MIG-a", "MIG-b"}))
        snapshot = await inventory.refresh()
        assert marked_when_asked == [True], "the plugin was told before the register was read"
        assert snapshot.draining == {"MIG-a", "MIG-b"}
        assert inventory.mark_draining(frozenset())
        await inventory.refresh()
        assert "MIG-a" not in inventory.draining
        assert inventory.latest.value.draining == frozenset()

    asyncio.run(run())


def test_what_stays_marked_is_marked_all_along() -> None:
    async def run() -> None:
        world = World()
        inventory = world.inventory()
        inventory.mark_draining(frozenset({"MIG-a", "MIG-b"}))
        await inventory.refresh()
        marked: list[frozenset[str]] = []
        world.asked = lambda: marked.append(inventory.draining)
        inventory.mark_draining(frozenset({"MIG-b", "MIG-c"}))
        await inventory.refresh()
        assert marked == [{"MIG-a", "MIG-b", "MIG-c"}], "a mark goes with the look, not before"
        assert inventory.draining == {"MIG-b", "MIG-c"}
        assert not inventory.mark_draining(frozenset({"MIG-b", "MIG-c"}))

    asyncio.run(run())


def test_an_agent_that_ends_takes_no_mark_back() -> None:
    async def run() -> None:
        inventory = World().inventory()
        inventory.mark_draining(frozenset({"MIG-a"}))
        inventory.keep_marks()
        inventory.mark_draining(frozenset())
        assert "MIG-a" in inventory.draining
        assert "MIG-a" in (await inventory.refresh()).draining

    asyncio.run(run())


def test_marks_go_with_the_first_look_after_the_change_and_not_before() -> None:
    async def run() -> None:
        world = World()
        inventory = world.inventory()
        inventory.mark_draining(frozenset({"MIG-a"}))
        await inventory.refresh()
        world.broken = True
        inventory.mark_draining(frozenset())
        with pytest.raises(HardwareError):
            await inventory.refresh()
        assert "MIG-a" in inventory.draining, "the GPUs could not be read: the slice may be gone"
        assert inventory.latest.value.draining == {"MIG-a"}
        world.broken = False
        assert (await inventory.refresh()).draining == frozenset()
        assert "MIG-a" not in inventory.draining

    asyncio.run(run())


def test_a_look_that_began_before_the_change_was_over_takes_no_mark_back() -> None:
    async def run() -> None:
        world = World()
        inventory = world.inventory()
        inventory.mark_draining(frozenset({"MIG-a"}))
        for taken_back_twice in (False, True):
            if taken_back_twice:
                inventory.mark_draining(frozenset())
            early = asyncio.create_task(inventory.refresh())
            await asyncio.sleep(0)
            if taken_back_twice:
                inventory.mark_draining(frozenset({"MIG-a"}))
            inventory.mark_draining(frozenset())
            assert (await early).draining == {"MIG-a"}
        assert (await inventory.refresh()).draining == frozenset()

    asyncio.run(run())


def test_whoever_waits_for_the_first_marks_waits_only_where_there_will_be_some() -> None:
    async def run() -> None:
        inventory = World().inventory()
        await inventory.marks_known(3600.0)
        inventory.expect_marks()
        waiting = asyncio.create_task(inventory.marks_known(3600.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        inventory.mark_draining(frozenset())
        await waiting
        inventory.expect_marks()
        await inventory.marks_known(0.0)

    asyncio.run(run())


def test_a_failure_keeps_the_last_snapshot_and_says_why_it_is_not_ready() -> None:
    async def run() -> None:
        world = World()
        inventory = world.inventory()
        assert not inventory.ready().ready
        before = await inventory.refresh()
        assert inventory.ready().ready
        world.broken = True
        with pytest.raises(HardwareError):
            await inventory.refresh()
        assert inventory.latest.value == before
        assert (inventory.ready().ready, inventory.ready().why) == (False, "no driver")
        world.broken = False
        await inventory.refresh()
        assert inventory.ready().ready

    asyncio.run(run())


def test_a_look_that_hangs_makes_it_unready() -> None:
    async def run() -> None:
        world = World()
        inventory = world.inventory(period=10.0)
        await inventory.refresh()
        world.now = 30.0
        assert inventory.ready().ready
        world.now = 40.0
        assert "last read 40 s ago" in inventory.ready().why

    asyncio.run(run())


def test_it_refreshes_by_itself_at_once_when_poked_and_through_failures() -> None:
    async def run() -> None:
        world = World()
        inventory = world.inventory()
        running = asyncio.create_task(inventory.run())
        await until(lambda: inventory.latest.synced)
        looks = world.looks
        inventory.poke()
        await until(lambda: world.looks > looks)
        world.broken = True
        inventory.poke()
        await until(lambda: not inventory.ready().ready)
        world.broken = False
        inventory.poke()
        await until(lambda: inventory.ready().ready)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        often = world.inventory(period=0.001)
        running = asyncio.create_task(often.run())
        looks = world.looks
        await until(lambda: world.looks > looks + 3)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(run())
