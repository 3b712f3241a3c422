"""The lease in which an agent tells of its node: written when something has changed, renewed now and then, never while blind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tests.kubernetes.dra.test_order import a100s
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.gates.test_gpu_reporter import on_server
from tests.kubernetes.waiting import until
from tranche.core.allocation import NodeView
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.leases import LeaseClient, decode_lease
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.observation.inventory import Snapshot
from tranche.kubernetes.telling.told_layouts import ToldLayouts
from tranche.kubernetes.telling.told_view import SILENT_SECONDS, ToldView, told_from_lease
from tranche.kubernetes.telling.view_reporter import ViewReporter

LEASE = "/apis/coordination.k8s.io/v1/namespaces/tranche/leases/tranche-view-n1"


def with_free(view: NodeView, free: int) -> NodeView:
    gpus = tuple(replace(gpu, memory_free=free) for gpu in view.node)
    return replace(view, node=replace(view.node, gpus=gpus))


class Telling:
    """A running component, its clock, and what it wrote."""

    def __init__(self, server: FakeApiServer, connection: ApiConnection) -> None:
        self.server = server
        self.snapshots: LatestValue[Snapshot] = LatestValue()
        self.node: LatestValue[KubeNode | None] = LatestValue()
        self.now = 0.0
        self.fresh = True
        self.slept = 0
        leases = LeaseClient(connection, "tranche", now=lambda: datetime.now(UTC), random=lambda: 0.0)
        self.layouts: LatestValue[ToldLayouts] = LatestValue()
        self.news = ViewReporter(
            leases,
            self.snapshots,
            self.node,
            lambda: self.fresh,
            self.layouts,
            clock=lambda: self.now,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept += 1
        await asyncio.sleep(0)

    @property
    def version(self) -> str:
        return str(self.server.objects[LEASE]["metadata"]["resourceVersion"]) if LEASE in self.server.objects else ""

    @property
    def heard(self) -> ToldView:
        return told_from_lease(decode_lease(self.server.objects[LEASE]))

    @property
    def told(self) -> NodeView:
        return self.heard.view

    async def show(self, view: NodeView, *condemned: str) -> None:
        """Have it seen, and wait until it was looked at."""
        before = self.slept
        self.snapshots.publish(Snapshot(view, frozenset(condemned)))
        await until(lambda: self.slept > before)


def telling(act: Callable[[Telling], Coroutine[Any, Any, None]]) -> None:
    async def run(server: FakeApiServer, connection: ApiConnection) -> None:
        made = Telling(server, connection)
        task = asyncio.create_task(made.news.run())
        made.node.publish(KubeNode("n1", "uid-n1", {}))
        try:
            await act(made)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    on_server(run)


def test_a_change_is_told_at_once_and_amounts_when_the_lease_is_due() -> None:
    async def act(it: Telling) -> None:
        await it.show(a100s(1))
        first = it.version
        assert it.told == a100s(1)
        spec = it.server.objects[LEASE]["spec"]
        assert spec["leaseDurationSeconds"] == SILENT_SECONDS
        assert it.server.objects[LEASE]["metadata"]["ownerReferences"][0]["name"] == "n1"
        await it.show(with_free(a100s(1), 5))
        assert it.version == first
        it.now = 60.0
        await it.show(with_free(a100s(1), 6))
        assert it.version != first
        assert it.told.node.gpus[0].memory_free == 6
        await it.show(a100s(2))
        assert len(it.told.node.gpus) == 2

    telling(act)


def test_what_becomes_of_a_layout_is_told_as_soon_as_it_is_known_and_when_it_changes() -> None:
    async def act(it: Telling) -> None:
        await it.show(a100s(1))
        assert it.heard.layouts is None
        for said in (ToldLayouts(True, "wait"), ToldLayouts(True, "drain")):
            it.layouts.publish(said)
            await until(lambda said=said: it.heard.layouts == said)  # type: ignore[misc]

    telling(act)


def test_that_a_marked_gpu_is_at_work_is_a_change() -> None:
    async def act(it: Telling) -> None:
        view = a100s(1)
        (gpu,) = view.node.gpus
        await it.show(view, gpu.uuid)
        assert it.heard.marked == it.told.changing == {gpu.uuid}
        await it.show(replace(view, changing=frozenset({gpu.uuid})), gpu.uuid)
        assert not it.heard.marked
        assert it.told.changing == {gpu.uuid}

    telling(act)


def test_while_the_driver_does_not_answer_nothing_is_renewed() -> None:
    async def act(it: Telling) -> None:
        await it.show(a100s(1))
        first = it.version
        it.fresh, it.now = False, 1000.0
        await it.show(a100s(2))
        assert it.version == first
        it.fresh = True
        await it.show(a100s(3))
        assert len(it.told.node.gpus) == 3

    telling(act)


def test_a_lease_that_is_gone_or_was_written_by_another_is_written_anew() -> None:
    async def act(it: Telling) -> None:
        await it.show(a100s(1))
        it.server.delete(LEASE)
        await it.show(a100s(2))
        await until(lambda: LEASE in it.server.objects and len(it.told.node.gpus) == 2)
        broken = it.server.objects[LEASE]
        broken["metadata"]["annotations"] |= {"tranche.dev/view": "%"}
        it.server.put(LEASE, broken)
        await it.show(a100s(3))
        await until(lambda: it.server.objects[LEASE]["metadata"]["annotations"]["tranche.dev/view"] != "%")
        assert len(it.told.node.gpus) == 3
        it.server.failures.append((500, {"message": "not now"}))
        await it.show(a100s(1))
        await until(lambda: len(it.told.node.gpus) == 1)
        assert it.news.ready().ready

    telling(act)
