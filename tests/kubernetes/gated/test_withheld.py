"""What is faulty, and room that is kept, is told to the controller, which gives nothing of it to those that it is not for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tests.kubernetes.agent.reporting import gates_reporter
from tests.kubernetes.mig_manager.mig_node import ManagedNode, on_node
from tests.kubernetes.waiting import until
from tests.strategies import uncuttable_gpu, view_of
from tranche.core.allocation import NodeView, Slice, WholeGpu, WithheldDevice
from tranche.core.request import Request, parse_request
from tranche.kubernetes.api.object_client import decode_lease
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import KEEP_ANNOTATION, MODE_LABEL
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.gated.leases import gpus_from_lease, withheld_places
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod
from tranche.kubernetes.gated.scheduler.placer import GpuNode, PodPlacement, UnplacedPod, place, waiting_text
from tranche.kubernetes.node.health import QUIET_SECONDS

LEASE = "/apis/coordination.k8s.io/v1/namespaces/tranche/leases/tranche-report-n1"
LARGE, SMALL = parse_request(mig_profile="7g.40gb"), parse_request(gpu_memory="4Gi")


def told(node: ManagedNode) -> NodeView | None:
    raw = node.server.objects.get(LEASE)
    return None if raw is None else gpus_from_lease(decode_lease(raw)).view


def withheld(node: ManagedNode) -> tuple[WithheldDevice, ...]:
    view = told(node)
    return () if view is None else view.withheld


def placed(view: NodeView | None, *requests: Request) -> tuple[PodPlacement | UnplacedPod, ...]:
    """What becomes of pods that ask for that, in that order."""
    assert view is not None
    pods = [ClusterPod("team", f"p{number}", f"u{number}", each) for number, each in enumerate(requests)]
    return place(pods, [GpuNode(FleetNode("n1"), view)])


@asynccontextmanager
async def telling(node: ManagedNode) -> AsyncIterator[None]:
    news = gates_reporter(node.services, lambda: node.now)
    tasks = [asyncio.create_task(news.run()), asyncio.create_task(node.services.gpu_events.run())]
    try:
        await until(lambda: node.services.gpu_events.ready().ready and told(node) is not None)
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def test_a_faulty_gpu_is_given_to_nobody_until_it_is_well_again(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        node.wants_reset = True
        node.set_labels({MODE_LABEL: "dynamic"})
        async with telling(node):
            node.machine.machine.inject_xid(0, 79)
            await until(lambda: bool(withheld(node)))
            (sick,) = withheld(node)
            assert (sick.place.gpu_uuid, "XID 79" in sick.why) == (node.host.driver.observe().by_index(0).uuid, True)
            found = placed(told(node), *[LARGE] * 2)
            assert isinstance(found[0], PodPlacement)
            assert [each.gpu_uuid for each in found[0].granted.grants] != [sick.place.gpu_uuid]
            assert isinstance(found[1], UnplacedPod)
            assert found[1].possible
            assert "it reported an error (XID 79)" in waiting_text(found[1])
            node.now += QUIET_SECONDS + 1
            for _ in range(20):
                await node.inventory.refresh()
            assert withheld(node) == (sick,)
            node.wants_reset = False
            await until(lambda: not withheld(node))
            assert all(isinstance(each, PodPlacement) for each in placed(told(node), LARGE, LARGE))

    on_node(tmp_path, test, "A100-40GB", "A100-40GB")


def test_room_is_kept_for_those_that_name_its_size(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        node.set_labels({MODE_LABEL: "dynamic"})
        async with telling(node):
            node.annotate({KEEP_ANNOTATION: "7g.40gb"})
            await until(lambda: bool(withheld(node)))
            (kept,) = withheld(node)
            assert isinstance(kept.place, Slice)
            assert (str(kept.place.profile), kept.for_large) == ("7g.40gb", True)
            found = placed(told(node), *[SMALL] * 8, LARGE)
            small = [each for each in found[:7] if isinstance(each, PodPlacement)]
            assert len(small) == 7
            assert {grant.gpu_uuid for each in small for grant in each.granted.grants}.isdisjoint({kept.place.gpu_uuid})
            assert isinstance(found[7], UnplacedPod)
            assert "reserved for larger requests" in waiting_text(found[7])
            assert isinstance(found[8], PodPlacement)
            assert found[8].granted.grants[0].gpu_uuid == kept.place.gpu_uuid
            node.annotate({KEEP_ANNOTATION: "large ones"})
            await until(lambda: ("Warning", "KeptRoomUnknown") in node.events)
            await until(lambda: not withheld(node))

    on_node(tmp_path, test, "A100-40GB", "A100-40GB")


def test_what_is_cordoned_is_withheld_from_everybody_there_as_well() -> None:
    gpu = uncuttable_gpu()
    cordon = WithheldDevice(WholeGpu(gpu.uuid), "cordoned by ada: its fan")
    view = replace(view_of(gpu), withheld=(cordon,))
    found = withheld_places(view, NodeMode.MIXED, {})
    assert found == (cordon,)
    (pod,) = placed(replace(view, withheld=found), parse_request(gpus="1"))
    assert isinstance(pod, UnplacedPod)
    assert "cordoned by ada: its fan" in waiting_text(pod)
