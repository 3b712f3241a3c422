"""Looking at the machine on a thread of its own: only while somebody wants to know, and through all that goes wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.strategies import uncuttable_gpu, view_of
from tranche.core.allocation import NodeView
from tranche.core.errors import HardwareError
from tranche.dashboard import watch
from tranche.dashboard.gauges_view import UseRecord
from tranche.dashboard.live import PageUpdate
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.dashboard.watch import MachinePublisher, UseFile
from tranche.node.state.session import StateFolder

NOTHING = view_of()


class Machine:
    """Stands in for a host: counts looks, and does what the test says in each."""

    def __init__(self, folder: Path, look: Callable[[int], NodeView] = lambda number: NOTHING) -> None:
        self.looks = 0
        self.opened = 0
        self.version = 1
        self.folder = folder
        self._places = StateFolder(folder)
        self._look = look

    @contextmanager
    def open(self) -> Iterator[Any]:
        self.opened += 1
        yield SimpleNamespace(
            places=self._places,
            ledger=SimpleNamespace(version=lambda: self.version),
            look=self._looked,
            waiters=lambda: (),
            events=lambda last: (),
        )

    def _looked(self, unsettled: object) -> NodeView:
        self.looks += 1
        return self._look(self.looks)


@pytest.fixture(autouse=True)
def no_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranche.dashboard.watch.NvmlGaugeReader", lambda clock: SimpleNamespace(read=lambda node: ()))
    monkeypatch.setattr("tranche.dashboard.watch.plans_of", lambda host: ())


def watching(machine: Machine, work: Callable[[MachinePublisher], Any], use: UseFile | None = None) -> None:
    async def run() -> None:
        found = MachinePublisher(machine.open, use or UseFile(machine.folder / "use"))
        found.start()
        try:
            await work(found)
        finally:
            await found.stop()

    asyncio.run(run())


async def news_until(
    found: MachinePublisher, wanted: Callable[[PageUpdate[MachineSnapshot]], bool]
) -> PageUpdate[MachineSnapshot]:
    async for news in found.news():
        if wanted(news):
            return news
    raise AssertionError("the news ended")


def test_it_looks_for_the_use_over_days_while_nobody_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    monkeypatch.setattr("tranche.dashboard.watch.LOOK_SECONDS", 0.01)

    async def work(found: MachinePublisher) -> None:
        while machine.looks < 4:
            await asyncio.sleep(0.01)
        assert found.newest is not None
        assert found.newest.use == UseRecord(())

    watching(machine, work, UseFile(tmp_path / "use"))


def test_nobody_looks_where_nobody_asks(tmp_path: Path) -> None:
    machine = Machine(tmp_path)

    async def work(found: MachinePublisher) -> None:
        await found.fresh()
        looks = machine.looks
        machine.version += 1
        await asyncio.sleep(0.5)  # more than twice as long as somebody who watches waits for news of the register
        assert machine.looks == looks
        await found.fresh()
        assert machine.looks == looks + 1

    watching(machine, work)


def test_who_asks_gets_a_look_that_began_afterwards(tmp_path: Path) -> None:
    looking, go_on = threading.Event(), threading.Event()

    def look(number: int) -> NodeView:
        if number == 1:
            looking.set()
            go_on.wait(60)
            return NOTHING
        return view_of(uncuttable_gpu())

    async def work(found: MachinePublisher) -> None:
        await asyncio.to_thread(looking.wait, 60)
        asked = asyncio.create_task(found.fresh())
        await asyncio.sleep(0)
        go_on.set()
        seen = await asked
        assert seen is not None
        assert len(seen.overview["gpus"]) == 1

    watching(Machine(tmp_path, look), work)


def test_a_written_register_is_news_and_one_that_is_not_is_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda number: view_of(*(uncuttable_gpu(n) for n in range(machine.version))))

    async def work(found: MachinePublisher) -> None:
        before = await news_until(found, lambda news: True)
        again = await news_until(found, lambda news: news.snapshot.taken > before.snapshot.taken)
        assert again.version == before.version
        machine.version += 1
        await news_until(found, lambda news: news.version != before.version)

    watching(machine, work)


@pytest.mark.parametrize("error", [HardwareError("the GPU fell off"), RuntimeError("a mistake of ours")])
def test_what_goes_wrong_is_said_and_is_tried_again(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def look(number: int) -> NodeView:
        if number == 2:
            raise error
        return NOTHING

    machine = Machine(tmp_path, look)

    async def work(found: MachinePublisher) -> None:
        await news_until(found, lambda news: True)
        trouble = await news_until(found, lambda news: bool(news.trouble))
        assert str(error) in trouble.trouble
        after = await news_until(found, lambda news: not news.trouble)
        assert after.snapshot.taken > trouble.snapshot.taken
        assert machine.opened == 2

    watching(machine, work)
    assert ("the machine could not be read" in caplog.text) == isinstance(error, RuntimeError)


def test_a_look_that_hangs_holds_up_the_first_who_asks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(watch, "_IMPATIENT_SECONDS", 0.01)
    go_on = threading.Event()

    def look(number: int) -> NodeView:
        if number > 1:
            go_on.wait(60)
        return NOTHING

    async def work(found: MachinePublisher) -> None:
        first = await news_until(found, lambda news: True)
        old = await found.fresh()
        assert old is not None
        assert old.taken == first.snapshot.taken
        assert await found.fresh() is old
        go_on.set()
        await news_until(found, lambda news: news.snapshot.taken > first.snapshot.taken)

    watching(Machine(tmp_path, look), work)


def test_the_end_ends_every_stream_of_news(tmp_path: Path) -> None:
    async def run() -> None:
        found = MachinePublisher(Machine(tmp_path).open, UseFile(tmp_path / "use"))
        found.start()
        streams = [asyncio.create_task(news_until(found, lambda news: False)) for _ in range(3)]
        await found.fresh()
        await found.stop()
        done = await asyncio.gather(*streams, return_exceptions=True)
        assert all(isinstance(each, AssertionError) for each in done)

    asyncio.run(run())
