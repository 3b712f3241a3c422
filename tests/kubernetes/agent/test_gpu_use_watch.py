"""The agent writes down how much its GPUs are used: a reading a minute, means over days, through restarts and faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.waiting import until
from tranche.core.errors import KubernetesUnavailable
from tranche.core.readings import GpuReading
from tranche.core.state import NodeState
from tranche.kubernetes.agent.node_reporter import GpuUseWatch
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.inventory import Snapshot
from tranche.kubernetes.telling.told_view import ViewReport, told_to_lease
from tranche.kubernetes.telling.use_report import READ_SECONDS, UseReport, use_from_text

BEGAN = 1_800_000_000.0
VIEW = a100s(1)
UUID = VIEW.node.gpus[0].uuid


class Recording:
    """A watch on a node, with a clock of its own; the lease is what the API server has."""

    def __init__(self, lease: Lease | None = None, refusals: int = 0, now: float = BEGAN) -> None:
        self.now = now
        self.ticks = 0.0
        self.busy: float | None = 0.5
        self.asked = 0
        self._lease, self._refusals = lease, refusals
        self._turn = asyncio.Semaphore(0)
        snapshots: LatestValue[Snapshot] = LatestValue()
        snapshots.publish(Snapshot(VIEW, frozenset()))
        services: Any = SimpleNamespace(
            node_name="n1", inventory=SimpleNamespace(latest=snapshots), leases=SimpleNamespace(get=self._get)
        )
        clocks: Any = {"now": lambda: self.now, "clock": lambda: self.ticks, "sleep": self._sleep}
        self.watch = GpuUseWatch(services, read=self._read, **clocks)
        self.use = self.watch.latest

    async def minutes(self, count: int) -> UseReport:
        """What is told after so many readings more."""
        end = self.now + count * READ_SECONDS
        for _ in range(count):
            self._turn.release()
        await until(lambda: use_from_text(self.use.value).taken == end)
        return use_from_text(self.use.value)

    async def _get(self, name: str) -> Lease | None:
        assert name == "tranche-report-n1"
        self.asked += 1
        if self.asked <= self._refusals:
            raise KubernetesUnavailable("the API server does not answer")
        return self._lease

    def _read(self, node: NodeState) -> Sequence[GpuReading]:
        return [GpuReading(gpu.uuid, memory_used=1, utilization=self.busy) for gpu in node]

    async def _sleep(self, seconds: float) -> None:
        if seconds == READ_SECONDS:
            await self._turn.acquire()
            self.now += seconds
            self.ticks += seconds


def recording(act: Callable[[Recording], Coroutine[Any, Any, None]], *fields: Any) -> None:
    async def run() -> None:
        it = Recording(*fields)
        task = asyncio.create_task(it.watch.run())
        await it.use.first()
        try:
            await act(it)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(run())


def busy_of(use: UseReport) -> list[tuple[float, float | None]]:
    return [(each.taken - BEGAN, cast("float | None", each.gpus[UUID]["busy"])) for each in use.lines]


def test_what_is_read_now_is_told_at_once_and_a_line_when_its_five_minutes_are_over() -> None:
    async def act(it: Recording) -> None:
        first = use_from_text(it.use.value)
        assert (first.taken, first.readings[0]["busy"], first.lines) == (BEGAN, 0.5, ())
        it.busy = 1.0
        assert busy_of(await it.minutes(5)) == [(240.0, 0.9)]
        it.busy = None
        assert busy_of(await it.minutes(6))[1:] == [(540.0, 1.0)]
        assert busy_of(await it.minutes(4))[2:] == [(840.0, None)]

    recording(act)


def test_it_goes_on_from_what_the_node_s_report_says() -> None:
    async def before(it: Recording) -> None:
        said.append(ViewReport("n1", VIEW, use=(await it.minutes(5), it.use.value)[1]))

    async def after(it: Recording) -> None:
        assert it.asked == 3, "what was recorded is not thrown away because the API server was away"
        assert busy_of(use_from_text(it.use.value)) == [(240.0, 0.5)]

    said: list[ViewReport] = []
    recording(before)
    recording(after, told_to_lease(said[0], ("n1", "uid-n1")), 2)


def test_a_clock_that_is_wrong_at_first_takes_nothing_away_and_makes_no_line() -> None:
    async def before(it: Recording) -> None:
        said.append(ViewReport("n1", VIEW, use=(await it.minutes(5), it.use.value)[1]))

    async def after(it: Recording) -> None:
        await it.minutes(2)
        it.now -= wrong
        use = await it.minutes(6)
        assert busy_of(use)[0] == (240.0, 0.5)
        assert all(abs(at) < 1_000 for at, _ in busy_of(use))

    for wrong in (-400 * 86_400.0, 8 * 86_400.0):
        said: list[ViewReport] = []
        recording(before)
        lease = told_to_lease(said[0], ("n1", "uid-n1"))
        recording(after, lease, 0, BEGAN + 300 + wrong)


@pytest.mark.parametrize("text", ["garbage", "H4sIAAAAAAAC//////8="])
def test_what_nobody_can_read_is_recorded_over(text: str) -> None:
    async def act(it: Recording) -> None:
        assert busy_of(await it.minutes(5)) == [(240.0, 0.5)]

    recording(act, told_to_lease(ViewReport("n1", VIEW, use=text), ("n1", "uid-n1")))
