"""The node's ResourceSlices on an API server that others write to as well, from a simulated machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.kubernetes.mig_manager.mig_node import NODE, ManagedNode, on_node
from tests.kubernetes.waiting import until
from tranche.core.allocation import Slice, WholeGpu
from tranche.core.errors import TrancheError
from tranche.core.grid import Placement
from tranche.core.keeper import ClaimKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import Request, WholeGpus
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.object_client import SliceClient
from tranche.kubernetes.claims.vocabulary import (
    DRIVER,
    FREE_GPUS_LABEL,
    KEEP_ANNOTATION,
    LARGEST_MEMORY_LABEL,
    LARGEST_SLICE_LABEL,
    MODE_LABEL,
    TaintKey,
)
from tranche.kubernetes.dra.publisher import SlicePublisher
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.advertisement_arbiter import AdvertisementState, PluginAdvertisement
from tranche.kubernetes.node.health import QUIET_SECONDS
from tranche.node.claims import ClaimRegister, ClaimRequest, ReservedClaim

SLICES = "/apis/resource.k8s.io/v1/resourceslices/"


@dataclass
class PublishingNode:
    """A node whose agent publishes."""

    node: ManagedNode
    publisher: SlicePublisher

    @property
    def slices(self) -> dict[str, dict[str, Any]]:
        found = {path: each for path, each in self.node.server.objects.items() if path.startswith(SLICES)}
        return {path.removeprefix(SLICES): each for path, each in sorted(found.items())}

    @property
    def devices(self) -> dict[str, dict[str, Any]]:
        return {d["name"]: d for each in self.slices.values() for d in each["spec"].get("devices", [])}

    @property
    def generations(self) -> set[int]:
        return {each["spec"]["pool"]["generation"] for each in self.slices.values()}

    @property
    def whole(self) -> bool:
        """Whether every slice of one generation is there."""
        counts = {each["spec"]["pool"]["resourceSliceCount"] for each in self.slices.values()}
        return len(self.generations) == 1 and counts == {len(self.slices)}

    def writes(self) -> list[tuple[str, str]]:
        return [
            (seen.method, seen.path.removeprefix(SLICES.rstrip("/")).lstrip("/"))
            for seen in self.node.server.requests
            if "resourceslices" in seen.path and seen.method != "GET"
        ]

    def set_mode(self, mode: str) -> None:
        self.node.set_labels({MODE_LABEL: mode})

    def taints(self, name: str) -> set[str]:
        return {each["key"] for each in self.devices[name].get("taints", [])}

    async def settled(self, at_least: int = 1) -> None:
        await until(lambda: self.publisher.ready().ready and len(self.slices) >= at_least and self.whole)


@asynccontextmanager
async def publishing(
    node: ManagedNode,
    registered: LatestValue[bool] | None = None,
    ways: AdvertisementState | None = None,
    reserved: LatestValue[frozenset[str]] | None = None,
    fallen: LatestValue[frozenset[str]] | None = None,
    *,
    withdraws: bool = False,
) -> AsyncIterator[PublishingNode]:
    connection = ApiConnection(ApiServer(node.server.url), sleep=lambda _: asyncio.sleep(0.001))
    services = replace(
        node.services,
        registered=registered or LatestValue(),
        reserved=reserved or LatestValue(),
        fallen=fallen or LatestValue(frozenset()),
    )
    if registered is None:
        services.registered.publish(True)
    client = SliceClient(connection, "n1", DRIVER)
    run = SlicePublisher.withdraw if withdraws else SlicePublisher.run
    publisher = SlicePublisher(
        services,
        client,
        pcie_roots=lambda view: {gpu.uuid: "pci0000:10" for gpu in view.node},
        ways=ways,
        pause=0.001,
        sleep=lambda _: asyncio.sleep(0.001),
    )
    found = PublishingNode(node, publisher)
    tasks = [asyncio.create_task(run(publisher)), asyncio.create_task(node.services.gpu_events.run())]
    try:
        yield found
    finally:
        ended = tasks[0].done()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError, TrancheError):  # of a GPU that is lost the driver has no events
                await task
        await connection.aclose()
        assert not ended, "the publisher ended by itself"


def test_a_dynamic_node_shows_its_devices_in_a_pool_that_is_whole(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:
            published.set_mode("dynamic")
            await published.settled()
            assert next(iter(published.slices)) == "n1-tranche-0-counters-0"
            assert {"gpu-0", "gpu-1", "gpu-0-1g-5gb-0", "gpu-1-7g-40gb-0"} <= published.devices.keys()
            assert published.devices["gpu-0"]["attributes"]["resource.kubernetes.io/pcieRoot"] == {
                "string": "pci0000:10"
            }
            for each in published.slices.values():
                assert (each["spec"]["driver"], each["spec"]["nodeName"]) == (DRIVER, "n1")
                (owner,) = each["metadata"]["ownerReferences"]
                assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "n1", "u1")

    on_node(tmp_path, test, "A100-40GB", "A100-40GB")


def test_nothing_is_shown_before_the_kubelet_has_the_driver(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        registered: LatestValue[bool] = LatestValue()
        async with publishing(node, registered) as published:
            published.set_mode("dynamic")
            registered.publish(False)
            await until(lambda: any("resourceslices" in seen.path for seen in node.server.watches()))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not published.writes()
            assert not published.publisher.ready().ready
            registered.publish(True)
            await published.settled()
            # A kubelet that is gone for a moment does not keep the pool from being put right.
            registered.publish(False)
            node.server.delete(SLICES + next(iter(published.slices)))
            await published.settled()

    on_node(tmp_path, test, "A100-40GB")


def test_a_static_node_shows_nothing_and_modes_change_live(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:
            await until(lambda: published.publisher.ready().ready)
            assert published.slices == {}
            published.set_mode("dynamic")
            await published.settled()
            assert published.taints("gpu-0-1g-5gb-0") == set()
            published.set_mode("off")
            await until(lambda: published.slices == {})
            published.set_mode("no-mode-at-all")
            await until(lambda: ("Warning", "NodeModeUnknown") in node.events)
            assert published.slices == {}
            published.set_mode("shared")
            await published.settled()
            assert published.taints("gpu-0-1g-5gb-0") == {TaintKey.MODE}
            assert published.taints("gpu-0") == set()

    on_node(tmp_path, test, "A100-40GB")


def test_room_is_kept_as_the_nodes_annotation_says(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        reserved: LatestValue[frozenset[str]] = LatestValue()
        async with publishing(node, reserved=reserved) as published:
            published.set_mode("dynamic")
            await published.settled()
            node.annotate({KEEP_ANNOTATION: "7g.40gb"})

            def kept() -> set[str]:
                return {name for name, each in published.devices.items() if "kept" in each["attributes"]}

            await until(lambda: len(kept()) == 2)
            place = next(name for name in kept() if "7g" in name)
            gpu = place.partition("-7g")[0]
            assert kept() == {place, gpu}
            assert published.devices[place]["attributes"]["kept"] == {"bool": True}
            await until(lambda: published.taints(f"{gpu}-1g-5gb-0") == {TaintKey.RESERVED})
            assert published.taints(place) == published.taints(gpu) == set()
            assert published.whole
            assert reserved.value == {name for name in published.devices if TaintKey.RESERVED in published.taints(name)}
            node.annotate({KEEP_ANNOTATION: "large ones"})
            await until(lambda: ("Warning", "KeptRoomUnknown") in node.events)
            await until(lambda: not kept())
            assert published.taints(f"{gpu}-1g-5gb-0") == set()

    on_node(tmp_path, test, "A100-40GB", "A100-40GB")


def test_what_a_pod_has_whose_claim_was_deleted_is_tainted_until_it_is_over(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        fallen: LatestValue[frozenset[str]] = LatestValue(frozenset())
        async with publishing(node, fallen=fallen) as published:
            published.set_mode("dynamic")
            await published.settled()
            gpu = WholeGpu(node.host.observe().gpus[0].uuid)
            promise_to_claim(node, gpu)
            await until(lambda: len(node.inventory.latest.value.view.allocations) == 1)
            assert published.taints("gpu-0") == set(), "the scheduler knows that a claim has it"
            fallen.publish(frozenset({"uid-a"}))
            await until(lambda: published.taints("gpu-0") == published.taints("gpu-0-1g-5gb-3") == {TaintKey.HELD})
            assert published.taints("gpu-1") == set()
            ClaimRegister(node.host).give_back("uid-a", why="its pod has ended")
            await until(lambda: published.taints("gpu-0") == published.taints("gpu-0-1g-5gb-3") == set())

    on_node(tmp_path, test, "A100-40GB", "A100-40GB")


def test_a_slice_that_tranche_did_not_make_comes_back_to_claims_and_its_room_to_nobody(tmp_path: Path) -> None:
    across = ("gpu-0", "gpu-0-1g-5gb-4", "gpu-0-7g-40gb-0")

    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:

            def as_it_is() -> bool:
                own = published.taints("gpu-0-3g-20gb-4") | published.taints("gpu-0-3g-20gb-4-shared")
                return not own and all(published.taints(name) == {TaintKey.FOREIGN} for name in across)

            async def holders(count: int) -> None:
                await until(lambda: len(node.inventory.latest.value.view.allocations) == count)
                await published.settled()

            published.set_mode("mixed")
            await published.settled()
            device = Slice(node.host.observe().gpus[0].uuid, parse_profile("3g.20gb"), Placement(4, 4))
            promise_to_claim(node, device)
            await holders(1)
            with node.host.ledger.write() as db:  # as when somebody moved the ledger away
                db.execute("DELETE FROM owned_instances")
            # While the claim has it as well: at its end the scheduler takes for free what has no taint.
            await until(as_it_is)
            ClaimRegister(node.host).give_back("uid-a", why="its pod has ended")
            await holders(0)
            assert as_it_is()

    on_node(tmp_path, test, "A100-40GB")


def promise_to_claim(node: ManagedNode, device: WholeGpu | Slice) -> None:
    """The claim with uid `uid-a` has the device now."""
    order = ClaimRequest(ClaimKeeper("team", "a", "uid-a"), Request(WholeGpus(1)), (device,))
    (promise,) = ClaimRegister(node.host).promise([order])
    assert isinstance(promise, ReservedClaim)
    ClaimRegister(node.host).fulfil(promise)


def test_what_somebody_deletes_or_edits_is_put_right(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:
            published.set_mode("dynamic")
            await published.settled()
            first = published.slices
            names = list(first)
            node.server.delete(SLICES + names[1])
            await until(lambda: len(published.slices) == len(first))
            await published.settled()
            assert published.generations == {1}
            edited = {**first[names[2]], "spec": {**first[names[2]]["spec"], "devices": []}}
            node.server.put(SLICES + names[2], edited)
            await until(lambda: bool(published.slices[names[2]]["spec"]["devices"]))
            assert {name: each["spec"] for name, each in published.slices.items()} == {
                name: each["spec"] for name, each in first.items()
            }

    on_node(tmp_path, test, "A100-40GB")


def test_the_slices_of_a_node_that_is_made_anew_end_with_the_new_one(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:
            published.set_mode("dynamic")
            await published.settled()

            def owners() -> set[str]:
                return {each["metadata"]["ownerReferences"][0]["uid"] for each in published.slices.values()}

            assert owners() == {"u1"}
            before = node.server.objects[NODE]
            node.server.put(NODE, {**before, "metadata": {**before["metadata"], "uid": "u2"}})
            await until(lambda: owners() == {"u2"})
            await published.settled()

    on_node(tmp_path, test, "A100-40GB")


def test_a_kubelet_that_wipes_all_is_answered_with_a_newer_generation(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:
            published.set_mode("dynamic")
            await published.settled()
            before = published.slices
            for name in before:
                node.server.delete(SLICES + name)
            node.server.end_watches()  # else it may be told of one at a time, and write that one again
            await until(lambda: published.slices.keys() == before.keys() and published.whole)
            assert min(published.generations) > 1
            assert {name: each["spec"].get("devices") for name, each in published.slices.items()} == {
                name: each["spec"].get("devices") for name, each in before.items()
            }

    on_node(tmp_path, test, "A100-40GB")


def test_a_lost_gpu_is_tainted_also_by_an_agent_that_never_saw_it_and_recovers(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:
            published.set_mode("dynamic")
            await published.settled()
            before = published.devices
            node.machine.machine.inject_lost(1)
            await until(lambda: published.taints("gpu-1") == {TaintKey.LOST})
            assert published.devices.keys() == before.keys()
        async with publishing(node) as published:
            await until(lambda: published.publisher.ready().ready)
            assert published.devices.keys() == before.keys()
            assert published.taints("gpu-1-1g-5gb-0") == {TaintKey.LOST}
            assert published.taints("gpu-0-1g-5gb-0") == set()
            node.machine.machine.inject_lost(1, lost=False)
            await until(lambda: published.devices == before)
            await published.settled()

    on_node(tmp_path, test, "A100-40GB", "A100-40GB")


def test_a_faulty_gpu_is_tainted_until_it_was_quiet_and_needs_no_reset(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:
            published.set_mode("dynamic")
            await published.settled()
            await until(lambda: node.services.gpu_events.ready().ready)
            node.machine.machine.inject_xid(0, 79)
            await until(lambda: published.taints("gpu-0") == {TaintKey.FAULTY})
            assert published.taints("gpu-1") == set()
            node.wants_reset = True
            node.now += QUIET_SECONDS + 1
            for _ in range(20):
                await node.inventory.refresh()
            assert published.taints("gpu-0") == {TaintKey.FAULTY}
            node.wants_reset = False
            await until(lambda: published.taints("gpu-0") == set())

    on_node(tmp_path, test, "A100-40GB", "A100-40GB")


def test_an_api_server_that_refuses_is_asked_again(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        node.server.refusals[("POST", "resourceslices")] = (500, {"message": "no room"})
        async with publishing(node) as published:
            published.set_mode("dynamic")
            await until(lambda: "no room" in published.publisher.ready().why)
            node.server.refusals.clear()
            await published.settled()

    on_node(tmp_path, test, "A100-40GB")


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:
            published.set_mode("dynamic")
            await published.settled()
            count = len(published.writes())
            for number in range(20):
                node.annotate({"number": str(number)})
                await node.inventory.refresh()
            assert len(published.writes()) == count == len(published.slices)
            assert NODE in node.server.objects

    on_node(tmp_path, test, "A100-40GB")


def test_the_node_is_labelled_with_what_fits_while_claims_are_offered_anything(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:
            published.set_mode("dynamic")
            memory = str(node.host.driver.observe().gpus[0].usable_memory >> 20)
            free = {LARGEST_SLICE_LABEL: "7g.40gb", LARGEST_MEMORY_LABEL: memory, FREE_GPUS_LABEL: "1"}
            await until(lambda: free.items() <= node.labels.items())
            published.set_mode("static")
            await until(lambda: not free.keys() & node.labels.keys())

    on_node(tmp_path, test, "A100-40GB")


def test_a_gpu_is_shown_once_the_device_plugin_has_taken_it_back_and_then_as_a_whole(tmp_path: Path) -> None:
    ways = AdvertisementState()

    async def test(node: ManagedNode) -> None:
        first, second = (gpu.uuid for gpu in node.host.driver.observe())
        async with publishing(node, ways=ways) as published:
            published.set_mode("dynamic")
            await until(lambda: "has not reported its devices" in published.publisher.ready().why)
            assert not published.writes()
            ways.plugin.publish(PluginAdvertisement(frozenset({WholeGpu(second)}), {"nvidia.com/gpu": 1}))
            await until(lambda: len(published.slices) > 0 and published.whole)
            assert {name.split("-")[1] for name in published.devices} == {"0"}
            assert ways.claims.value == {first}
            await until(lambda: "not all GPUs are offered to claims yet" in published.publisher.ready().why)
            before = published.writes()
            ways.plugin.publish(PluginAdvertisement())
            await until(lambda: "gpu-1" in published.devices and published.publisher.ready().ready)
            assert not published.taints("gpu-1")
            # Neither GPU was shown in part, nor as taken, on the way.
            assert len(published.writes()) == len(before) + len(published.slices)
            published.set_mode("static")
            await until(lambda: not published.slices and not ways.claims.value)

    on_node(tmp_path, test, "A100-40GB", "A100-40GB")


def test_what_is_shown_is_kept_true_by_an_agent_whose_device_plugin_says_nothing(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:
            published.set_mode("dynamic")
            await published.settled()
            shown = published.devices.keys()
        async with publishing(node, ways=AdvertisementState()) as published:

            def struck() -> bool:
                node.machine.machine.inject_xid(0, 79)  # what nobody listened to yet is reported again
                return published.taints("gpu-0") == {TaintKey.FAULTY}

            await until(struck)
            assert published.devices.keys() == shown

    on_node(tmp_path, test, "A100-40GB")


def test_nothing_new_is_shown_while_the_node_counts_what_nobody_knows(tmp_path: Path) -> None:
    """An agent that has just started does not know what the one before had listed."""
    ways = AdvertisementState()
    ways.plugin.publish(PluginAdvertisement())

    async def test(node: ManagedNode) -> None:
        node.server.put(NODE, {**node.server.objects[NODE], "status": {"allocatable": {"nvidia.com/gpu": "1"}}})
        async with publishing(node, ways=ways) as published:
            published.set_mode("dynamic")
            await until(lambda: "nvidia.com/gpu" in published.publisher.ready().why)
            assert not published.writes()
            node.server.put(NODE, {**node.server.objects[NODE], "status": {"allocatable": {"nvidia.com/gpu": "0"}}})
            await published.settled()

    on_node(tmp_path, test, "A100-40GB")


def test_a_node_whose_cluster_gives_shares_otherwise_by_now_shows_claims_nothing(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with publishing(node) as published:
            published.set_mode("dynamic")
            await published.settled()
        node.server.refusals["DELETE", "counters-0"] = (503, {"message": "not now"})
        async with publishing(node, withdraws=True) as withdrawing:
            await until(lambda: ("DELETE", "n1-tranche-0-counters-0") in withdrawing.writes())
            node.server.refusals.clear()
            await until(lambda: not withdrawing.slices)

    on_node(tmp_path, test, "A100-40GB")
