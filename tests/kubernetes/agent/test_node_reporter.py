"""The lease in which an agent tells of its node: written when something has changed, renewed now and then, never while blind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.test_tier_watch import on_server
from tests.kubernetes.waiting import until
from tranche.core.allocation import Allocation, NodeView, Phase, Slice
from tranche.core.grid import Placement
from tranche.core.keeper import ProcessKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.core.state import GpuProcess
from tranche.kubernetes.agent.node_reporter import NodeReporter
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.object_client import LeaseClient, decode_lease
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.gated.leases import NodeGpus, gpus_from_lease
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.health import FaultyDevices
from tranche.kubernetes.node.inventory import Snapshot
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.telling.told_view import SILENT_SECONDS, LayoutReport, ViewReport, told_from_lease
from tranche.planning.layouts.named_layouts import LayoutList

WAITS = LayoutReport(True, "wait", turns=True)
LEASE = "/apis/coordination.k8s.io/v1/namespaces/tranche/leases/tranche-report-n1"


NODE = KubeNode("n1", "uid-n1", {"tranche.dev/mode": "dynamic"})


def with_free(view: NodeView, free: int) -> NodeView:
    gpus = tuple(replace(gpu, memory_free=free) for gpu in view.node)
    return replace(view, node=replace(view.node, gpus=gpus))


class Telling:
    """A running component, its clock, and what it wrote."""

    def __init__(
        self, server: FakeApiServer, connection: ApiConnection, *, to_people: bool, told: LayoutReport = WAITS
    ) -> None:
        self.server = server
        self.connection = connection
        self.snapshots: LatestValue[Snapshot] = LatestValue()
        self.node: LatestValue[KubeNode | None] = LatestValue()
        self.now = 0.0
        self.fresh = True
        self.slept = 0
        leases = LeaseClient(connection, "tranche")
        self.layouts: LatestValue[LayoutList] = LatestValue()
        self.backend: LatestValue[AllocationBackend] = LatestValue()
        self.refused: LatestValue[Mapping[str, str]] = LatestValue({})
        self.use: LatestValue[str] = LatestValue()
        faults: LatestValue[FaultyDevices] = LatestValue()
        faults.publish(FaultyDevices())
        services = SimpleNamespace(
            api=KubeClient(connection),
            leases=leases,
            inventory=SimpleNamespace(latest=self.snapshots, ready=lambda: Readiness(self.fresh)),
            node=self.node,
            backend=self.backend,
            device_health=SimpleNamespace(faults=faults),
            refused=self.refused,
        )
        self.news = NodeReporter(
            cast(NodeContext, services),
            told,
            self.layouts,
            self.use,
            to_people=to_people,
            clock=lambda: self.now,
            pause=0.0,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept += 1
        await asyncio.sleep(0)

    @property
    def version(self) -> str:
        return str(self.server.objects[LEASE]["metadata"]["resourceVersion"]) if LEASE in self.server.objects else ""

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.server.objects[LEASE]["metadata"]["annotations"]
        return found

    @property
    def chosen_by(self) -> NodeGpus | None:
        """What a controller reads."""
        return gpus_from_lease(decode_lease(self.server.objects[LEASE])) if LEASE in self.server.objects else None

    @property
    def heard(self) -> ViewReport:
        return told_from_lease(decode_lease(self.server.objects[LEASE]))

    @property
    def told(self) -> NodeView:
        return self.heard.view

    async def show(self, view: NodeView, *draining: str) -> None:
        """Have it seen, and wait until it was looked at."""
        before = self.slept
        self.snapshots.publish(Snapshot(view, frozenset(draining)))
        await until(lambda: self.slept > before)


def telling(
    act: Callable[[Telling], Coroutine[Any, Any, None]],
    *,
    to_people: bool = True,
    backend: AllocationBackend = AllocationBackend.CLAIMS,
) -> None:
    """With an agent that tells people, or a controller alone, in a cluster of that backend."""

    async def run(server: FakeApiServer, connection: ApiConnection) -> None:
        made = Telling(server, connection, to_people=to_people)
        task = asyncio.create_task(made.news.run())
        made.node.publish(NODE)
        made.backend.publish(backend)
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
        for offer in (LayoutList(), LayoutList("tranche/layouts")):
            it.layouts.publish(offer)
            said = replace(WAITS, offer=offer)
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


def test_a_controller_is_told_each_change_once_and_a_lease_that_is_gone_comes_back() -> None:
    async def act(it: Telling) -> None:
        it.snapshots.publish(Snapshot(a100s(1)))
        await until(lambda: it.chosen_by is not None and it.news.ready().ready)
        first = it.chosen_by
        assert first is not None
        assert first.generation == 1
        # What changes from moment to moment is no news.
        await it.show(with_free(a100s(1), 5))
        it.refused.publish({"u1": "it is taken"})
        await until(lambda: (found := it.chosen_by) is not None and bool(found.refused))
        second = it.chosen_by
        assert second is not None
        assert (second.generation, second.refused) == (2, {"u1": "it is taken"})
        it.server.delete(LEASE)
        it.refused.publish({})
        await until(lambda: (found := it.chosen_by) is not None and not found.refused)
        # What cannot be read is written over, and counted on.
        broken = it.server.objects[LEASE]
        broken["metadata"]["annotations"] |= {"tranche.dev/view": "%", "tranche.dev/generation": "40"}
        it.server.put(LEASE, broken)
        it.node.publish(replace(NODE, labels={"tranche.dev/mode": "off"}))
        await until(lambda: it.annotations["tranche.dev/generation"] == "41")

    telling(act, to_people=False, backend=AllocationBackend.GATES)


def test_an_agent_that_starts_again_writes_nothing_to_a_controller_that_knows_it() -> None:
    async def act(it: Telling) -> None:
        await it.show(a100s(1))
        version = it.version
        again = asyncio.create_task(it.news.run())
        await it.show(with_free(a100s(1), 7))
        await it.show(with_free(a100s(1), 8))
        assert it.version == version
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)

    telling(act, to_people=False, backend=AllocationBackend.GATES)


def test_one_lease_tells_people_and_a_controller_and_renewing_it_is_no_new_generation() -> None:
    async def act(it: Telling) -> None:
        await it.show(a100s(1))
        chosen, heard = it.chosen_by, it.heard
        assert chosen is not None
        assert (chosen.generation, heard.view) == (1, a100s(1))
        assert it.server.objects[LEASE]["metadata"]["labels"] == {
            "tranche.dev/placing": "gpus",
            "tranche.dev/told": "view",
        }
        version, it.now = it.version, 60.0
        await it.show(with_free(a100s(1), 9))
        assert it.version != version
        renewed = it.chosen_by
        assert renewed == chosen
        assert it.told.node.gpus[0].memory_free == 9
        # While the driver does not answer, the controller hears why pods cannot start, and people that nobody has seen the node.
        before, it.fresh = it.server.objects[LEASE]["spec"]["renewTime"], False
        it.refused.publish({"u1": "the driver does not answer"})
        await until(lambda: (found := it.chosen_by) is not None and bool(found.refused))
        assert it.server.objects[LEASE]["spec"]["renewTime"] == before
        it.backend.publish(AllocationBackend.CLAIMS)
        it.fresh = True
        await it.show(a100s(2))
        await until(lambda: "tranche.dev/placing" not in it.server.objects[LEASE]["metadata"]["labels"])

    telling(act, backend=AllocationBackend.GATES)


def test_without_people_to_tell_no_more_is_told_than_a_controller_needs() -> None:
    async def act(it: Telling) -> None:
        (gpu,) = a100s(1).node
        processes = (GpuProcess(7, "train --secret", 5), GpuProcess(8, "another", 6))
        grants = (Slice(gpu.uuid, parse_profile("1g.5gb"), Placement(0, 1)),)
        keeper = ProcessKeeper(7, 1, 2, "digest", ((9, 1),), True)
        held = Allocation(
            "a-1", Request(MigSlice(parse_profile("1g.5gb"))), grants, Phase.ACTIVE, 0.0, "python x", keeper
        )
        view = replace(a100s(1), allocations=(held,))
        await it.show(
            replace(view, node=replace(view.node, gpus=(replace(gpu, processes=processes, memory_free=5),))), gpu.uuid
        )
        (shown,), (kept,) = it.told.node.gpus, it.told.allocations
        assert shown.processes == (GpuProcess(7, "train --secret"),)
        assert (shown.memory_free, kept.command, kept.keeper) == (0, "", ProcessKeeper(7, 1))
        assert it.heard.layouts is None
        assert not it.heard.marked
        assert it.told.changing == {gpu.uuid}
        assert it.server.objects[LEASE]["metadata"]["labels"] == {"tranche.dev/placing": "gpus"}

    telling(act, to_people=False, backend=AllocationBackend.GATES)


def test_where_nobody_is_to_be_told_there_is_no_lease() -> None:
    async def act(it: Telling) -> None:
        await it.show(a100s(1))
        await it.show(a100s(2))
        assert not it.version
        assert it.news.ready().ready
        it.backend.publish(AllocationBackend.GATES)
        await until(lambda: bool(it.version) and it.news.ready().ready)

    telling(act, to_people=False)


def test_the_use_of_gpus_is_told_when_the_lease_is_due_and_stands_until_more_is_known() -> None:
    async def act(it: Telling) -> None:
        it.use.publish("one")
        await it.show(a100s(1))
        assert it.heard.use == "one"
        version = it.version
        it.use.publish("two")
        await it.show(with_free(a100s(1), 5))
        assert it.version == version
        it.now = 60.0
        await it.show(with_free(a100s(1), 6))
        assert it.heard.use == "two"
        again = Telling(it.server, it.connection, to_people=True)
        task = asyncio.create_task(again.news.run())
        again.node.publish(NODE)
        again.backend.publish(AllocationBackend.CLAIMS)
        await again.show(a100s(2))
        assert len(again.told.node.gpus) == 2
        assert again.heard.use == "two"
        task.cancel()

    telling(act)


def test_a_controller_alone_is_not_told_how_much_gpus_are_used() -> None:
    async def act(it: Telling) -> None:
        it.use.publish("one")
        await it.show(a100s(1))
        assert "tranche.dev/use" not in it.annotations

    telling(act, to_people=False, backend=AllocationBackend.GATES)
