"""Every front end of a node sees a fault and its recovery alike: all ask one watch, which alone hears the driver's reports."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NoReturn

from tests.kubernetes.agent.reporting import gates_reporter
from tests.kubernetes.device_plugin.kubelet import KubeletStandIn
from tests.kubernetes.dra.claim_node import ClaimNodeStandIn, on_claim_node
from tests.kubernetes.dra.test_publisher import publishing
from tests.kubernetes.waiting import until
from tests.node.processes import isolated
from tranche.core.allocation import WithheldDevice
from tranche.kubernetes.api.object_client import decode_lease
from tranche.kubernetes.claims.vocabulary import TaintKey
from tranche.kubernetes.device_plugin.config_source import ConfigSource, StartSettings
from tranche.kubernetes.device_plugin.plugin import DevicePlugin
from tranche.kubernetes.gated.leases import gpus_from_lease
from tranche.kubernetes.node.health import QUIET_SECONDS

LEASE = "/apis/coordination.k8s.io/v1/namespaces/tranche/leases/tranche-report-n1"


@isolated
def test_device_plugin_claims_slices_and_gates_say_the_same_of_a_faulty_gpu() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        services = node.node.services
        await services.inventory.latest.first()

        def listen() -> NoReturn:
            raise AssertionError("a front end hears the driver's reports by itself")

        services.gpu_events.listen = listen  # type: ignore[method-assign]
        kubelet = KubeletStandIn(node.cdi.parent / "plugins")
        await kubelet.start()
        start = StartSettings(
            flags={
                "--mig-strategy": "mixed",
                "--kubelet-socket": str(kubelet.socket),
                "--device-list-strategy": ["envvar"],
            }
        )
        config = ConfigSource(start, services.api, "tranche", services.node, driver_obstacle=lambda _: "")
        plugin = DevicePlugin(services, config, cdi_folder=node.cdi)
        news = gates_reporter(services, lambda: node.node.now)
        tasks = [asyncio.create_task(each.run()) for each in (config, plugin, news)]
        uuids = [gpu.uuid for gpu in services.inventory.latest.value.view.node]

        def counted() -> frozenset[str]:
            listed = kubelet.devices.get("nvidia.com/gpu", {})
            return frozenset(name for name, device in listed.items() if device.health != "Healthy")

        def withheld() -> frozenset[str]:
            lease = node.node.server.objects.get(LEASE)
            found: tuple[WithheldDevice, ...] = (
                () if lease is None else gpus_from_lease(decode_lease(lease)).view.withheld
            )
            return frozenset(each.place.gpu_uuid for each in found if each.faulty)

        sick: set[str] = set()

        async def heard() -> None:
            async for report in reports:
                sick.clear()
                sick.update(each.device.device_name for each in report.devices if each.health != 1)

        try:
            async with publishing(node.node) as published, node.driver(), node.kubelet.health() as reports:
                tasks.append(asyncio.create_task(heard()))
                await published.settled()
                await until(
                    lambda: (
                        services.gpu_events.ready().ready and plugin.ready().ready and LEASE in node.node.server.objects
                    )
                )

                def tainted() -> frozenset[str]:
                    names = {f"gpu-{number}": uuid for number, uuid in enumerate(uuids)}
                    return frozenset(uuid for each, uuid in names.items() if TaintKey.FAULTY in published.taints(each))

                def unhealthy() -> frozenset[str]:
                    return frozenset(uuid for number, uuid in enumerate(uuids) if f"gpu-{number}" in sick)

                def said() -> list[frozenset[str]]:
                    return [counted(), tainted(), unhealthy(), withheld()]

                node.node.machine.machine.inject_xid(1, 79)
                await until(lambda: said() == [{uuids[1]}] * 4)
                node.node.now += QUIET_SECONDS + 1
                await until(lambda: said() == [frozenset()] * 4)
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
            await kubelet.stop()

    on_claim_node(test, "A100-40GB", "A100-40GB")
