"""The driver's reports, from the simulator's library to a listener."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kubernetes.kubelet_stand_in import Kubelet, no_pods
from tests.kubernetes.waiting import patiently, until
from tests.node.machines import Node, change, enable, node_of
from tranche.core.errors import TrancheError
from tranche.hardware.gpu_events import GpuEvent, GpuEventKind, GpuEventStream
from tranche.kubernetes.node.gpu_events import GpuEventWatch
from tranche.kubernetes.node.inventory import Inventory
from tranche.kubernetes.node.pod_register import PodRegister


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return node_of(tmp_path, "A100-40GB", "A100-40GB")


def test_an_xid_names_its_gpu_and_its_instance(node: Node) -> None:
    with node.driver() as driver:
        gpus = driver.observe().gpus
        stream = GpuEventStream(gpu.uuid for gpu in gpus)
        assert stream.gpu_uuids == tuple(gpu.uuid for gpu in gpus)
        assert stream.wait(0) is None
        node.machine.inject_xid(1, 79)
        node.machine.inject_xid(0, 48, gpu_instance_id=7, compute_instance_id=0)
        found = {stream.wait(10), stream.wait(10)}
        assert found == {
            GpuEvent(GpuEventKind.XID, gpus[1].uuid, 79),
            GpuEvent(GpuEventKind.XID, gpus[0].uuid, 48, 7),
        }
        stream.close()


def test_a_lost_gpu_is_left_out(node: Node) -> None:
    with node.driver() as driver:
        uuids = [gpu.uuid for gpu in driver.observe()]
        node.machine.inject_lost(0)
        stream = GpuEventStream(uuids)
        assert stream.gpu_uuids == (uuids[1],)
        stream.close()


def test_listeners_get_reports_and_the_inventory_looks_again_also_after_a_change_of_mode(node: Node) -> None:
    async def run() -> None:
        with node.host() as host:
            pods = PodRegister(host, Kubelet(), no_pods, clock=lambda: 0.0)
            inventory = Inventory(pods.look, clock=lambda: 0.0, period=3600.0)
            opened: list[GpuEventStream] = []

            def open_stream(uuids: list[str]) -> GpuEventStream:
                opened.append(GpuEventStream(uuids))
                return opened[-1]

            events = GpuEventWatch(open_stream, inventory)
            assert not events.ready().ready
            tasks = [asyncio.create_task(inventory.run()), asyncio.create_task(events.run())]
            with events.listen() as queue:
                for streams, xid in ((1, 63), (2, 74)):
                    await until(lambda: len(opened) == streams and events.ready().ready)  # noqa: B023
                    node.machine.inject_xid(0, xid)
                    event = await patiently(queue.get())
                    assert (event.gpu_uuid, event.xid) == (inventory.latest.value.view.node.gpus[0].uuid, xid)
                    if xid == 63:
                        gpu = host.view().node.gpus[0]
                        await asyncio.to_thread(change, host, *enable(gpu))
                        await inventory.refresh()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await patiently(task)
            await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(run())


def test_a_stream_that_breaks_is_the_components_failure(node: Node) -> None:
    async def run() -> None:
        with node.host() as host:
            pods = PodRegister(host, Kubelet(), no_pods, clock=lambda: 0.0)
            inventory = Inventory(pods.look, clock=lambda: 0.0)
            events = GpuEventWatch(GpuEventStream, inventory)
            await inventory.refresh()
            node.machine.inject_error("nvmlEventSetWait_v2", 999, calls=1)
            with pytest.raises(TrancheError, match="wait for the driver's events"):
                await patiently(events.run())
            assert not events.ready().ready

    asyncio.run(run())
