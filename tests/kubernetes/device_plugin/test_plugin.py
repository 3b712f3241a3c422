"""The whole plugin on a simulated machine, against a kubelet on real sockets: what changes is told, without a restart."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest

from tests.kubernetes.device_plugin.kubelet import KubeletStandIn, until
from tests.kubernetes.kubelet_stand_in import Kubelet as PodResourcesStandIn
from tests.node.machines import Node, change, create, enable, node_of
from tests.node.processes import in_child
from tranche.core.allocation import device_uuid
from tranche.core.errors import KubernetesForbidden, KubernetesUnavailable, TrancheError
from tranche.core.keeper import SETTLED_SECONDS
from tranche.core.request import parse_request
from tranche.core.state import ComputeMode
from tranche.hardware.gpu_events import GpuEventStream, needs_recovery
from tranche.hardware.nodes import SimulatedDeviceFiles
from tranche.hardware.nvml_links import read_links
from tranche.kubernetes.api.objects import KubeEventType, KubeNode, KubePod, PodRef
from tranche.kubernetes.claims.vocabulary import MODE_LABEL
from tranche.kubernetes.device_plugin.config import PluginConfig
from tranche.kubernetes.device_plugin.config_source import ConfigSource, StartSettings
from tranche.kubernetes.device_plugin.device_list import GRACE_SECONDS, SETTLE_SECONDS
from tranche.kubernetes.device_plugin.endpoints import LINGER_SECONDS
from tranche.kubernetes.device_plugin.offers import INSISTED_SECONDS
from tranche.kubernetes.device_plugin.plugin import BLIND_SECONDS, UNKNOWN_SECONDS, DevicePlugin
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.advertisement_arbiter import AdvertisementState
from tranche.kubernetes.node.gpu_events import DeviceHealthWatch, GpuEventWatch
from tranche.kubernetes.node.health import QUIET_SECONDS, xid_policy
from tranche.kubernetes.node.inventory import Inventory
from tranche.kubernetes.node.pod_register import PodRegister
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.serving.supervisor import Supervisor
from tranche.local.queue import Queue
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.policy_change import cordon, uncordon

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
VERSIONS = ("container_runtime", "kubelet_version")
BY_CDI = ("containerd://2.3.7", "v1.36.3")


class Api:
    """The two things that the plugin asks of an API server."""

    def __init__(self) -> None:
        self.events: list[tuple[KubeEventType, str, str]] = []
        self.config_map: LatestValue[Mapping[str, str] | None] = LatestValue()
        self.failures = 0
        self.forbidden = False
        self.of_pods: list[tuple[str, str]] = []

    async def create_node_event(self, node: KubeNode, severity: KubeEventType, reason: str, message: str) -> None:
        if self.failures:
            self.failures -= 1
            raise KubernetesUnavailable("no API server")
        self.events.append((severity, reason, message))

    async def create_pod_event(
        self, pod: KubePod, node_name: str, severity: KubeEventType, reason: str, message: str
    ) -> None:
        if self.forbidden:
            raise KubernetesForbidden("may not create events")
        self.of_pods.append((str(pod.ref), reason))

    async def watch_config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, str] | None]:
        async for value in self.config_map.changes():
            yield value

    @property
    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.events]


class Rig:
    """Everything around the plugin; `skip` moves its clock."""

    def __init__(
        self,
        node: Node,
        host: Host,
        ways: AdvertisementState | None,
        **settings: object,
    ) -> None:
        self.node, self.host = node, host
        self.api = Api()
        self.kubelet = KubeletStandIn(node.folder / "plugins")
        self.kube_node: LatestValue[KubeNode | None] = LatestValue()
        # Without the node's versions the strategy is said; None leaves the node unknown.
        versions = settings.pop("versions", ())
        said = {"--device-list-strategy": ["envvar"]} if versions == () else {}
        if versions is not None:
            self.kube_node.publish(KubeNode("n", **dict(zip(VERSIONS, versions, strict=False))))  # type: ignore[call-overload]
        self.cdi_folder = node.folder / "cdi"
        self._skipped = 0.0
        self.hosted: Supervisor
        self.mps_tied = ""
        self.laid_out = False
        strategy = settings.pop("strategy", "mixed")
        flags = settings.pop("flags", {"--mig-strategy": strategy, "--kubelet-socket": str(self.kubelet.socket)})
        start = StartSettings(flags={**said, **flags}, **settings)  # type: ignore[arg-type, dict-item]
        self.holdings = PodResourcesStandIn()
        self.running: list[KubePod] = []
        self.pods = PodRegister(host, self.holdings, self._running, clock=self.clock)
        self.inventory = Inventory(self.pods.look, clock=self.clock, period=3600.0)
        self.cdi_obstacle = ""
        self.config = ConfigSource(
            start,
            self.api,  # type: ignore[arg-type]
            "ns",
            self.kube_node,
            driver_obstacle=lambda config: self.cdi_obstacle,
        )
        self.events = GpuEventWatch(GpuEventStream, self.inventory)
        self.device_health = DeviceHealthWatch(
            self.events,
            self.inventory,
            needs_recovery=needs_recovery,
            policy=lambda: xid_policy(
                self.config.latest.value.disabled_health_checks, self.config.latest.value.enabled_health_checks
            ),
            clock=self.clock,
            recovery_seconds=0.01,
        )
        services = SimpleNamespace(
            api=self.api,
            backend=LatestValue(),
            device_health=self.device_health,
            host=host,
            inventory=self.inventory,
            node=self.kube_node,
            pods=self.pods,
        )
        files = SimulatedDeviceFiles(node.machine.state)
        self.plugin = DevicePlugin(
            cast(NodeContext, services),
            self.config,
            files=lambda config: files,
            mps_tied=lambda: self.mps_tied,
            clock=self.clock,
            cdi_folder=self.cdi_folder,
            ways=ways,
            laid_out=lambda: self.laid_out,
        )

    async def _running(self) -> Sequence[KubePod]:
        """What the API server says of the node's pods."""
        return self.running

    def clock(self) -> float:
        return time.monotonic() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds

    async def counts(self, expected: dict[str, tuple[int, int]]) -> None:
        """Return when the kubelet knows that: just so many healthy devices, and beside them what may be leaving still."""
        await until(lambda: self.known(expected), f"{expected}")

    def known(self, expected: dict[str, tuple[int, int]]) -> bool:
        """Whether the kubelet has just so many healthy devices."""
        seen = self.kubelet.counts()
        return seen.keys() == expected.keys() and all(
            seen[name][0] >= capacity and seen[name][1] == free for name, (capacity, free) in expected.items()
        )

    def healthy(self, resource: str) -> list[str]:
        """The devices that the kubelet may give away."""
        return [name for name, device in self.kubelet.devices.get(resource, {}).items() if device.health == "Healthy"]

    async def strike(self, expected: dict[str, tuple[int, int]], *inject: Callable[[], None]) -> None:
        """Have the driver report errors until the kubelet knows just that: what nobody listened to yet is reported again."""

        def struck() -> bool:
            for each in inject:
                each()
            return self.known(expected)

        await until(struck, f"{expected}")

    async def cut(self, gpu: int, *slices: tuple[str, int]) -> None:
        """Put a GPU into MIG mode, and make slices on it; the inventory looks afterwards."""
        state = self.host.view().node.gpus[gpu]
        steps = [] if state.mig_enabled else enable(state)
        await asyncio.to_thread(change, self.host, *steps, *(create(state, name, start) for name, start in slices))
        await self.inventory.refresh()


def run(
    folder: Path,
    scenario: Callable[[Rig], Awaitable[None]],
    *boards: str,
    marks_to_come: bool = False,
    driver: str = "",
    ways: AdvertisementState | None = None,
    claims_known: bool = True,
    **settings: object,
) -> None:
    async def main(host: Host, node: Node) -> None:
        if ways is not None and claims_known:
            ways.claims.publish(frozenset())
        rig = Rig(node, host, ways, **settings)
        if marks_to_come:
            rig.inventory.expect_marks()
        await rig.kubelet.start()
        components = (rig.inventory, rig.config, rig.events, rig.device_health, rig.plugin)
        rig.hosted = Supervisor(components, clock=rig.clock)
        hosted = asyncio.create_task(rig.hosted.run())
        try:
            await scenario(rig)
        finally:
            hosted.cancel()
            with suppress(asyncio.CancelledError):
                await hosted
            await rig.kubelet.stop()
            await asyncio.get_running_loop().shutdown_default_executor()

    node = node_of(folder, *(boards or ("A100-40GB", "A100-40GB")))
    if driver:
        node.machine.set_driver(driver)

    def in_its_process() -> None:
        with node.host() as host:
            asyncio.run(main(host, node))

    in_child(in_its_process)


def test_a_change_of_the_cut_is_told_with_no_restart(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (2, 2)})
        await until(lambda: rig.plugin.ready().ready, "ready")
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1), ("3g.20gb", 4))
        await rig.counts({GPU: (1, 1), SLICE: (2, 2), "nvidia.com/mig-3g.20gb": (1, 1)})
        await rig.cut(0, ("1g.5gb", 2))
        await rig.counts({GPU: (1, 1), SLICE: (3, 3), "nvidia.com/mig-3g.20gb": (1, 1)})
        assert [each.resource_name for each in rig.kubelet.registrations].count(SLICE) == 1

    run(tmp_path, scenario)


def test_allocate_gives_what_the_simulated_slice_needs_and_notes_the_hand_over(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1))
        await rig.counts({GPU: (1, 1), SLICE: (2, 2)})
        first, second = rig.kubelet.devices[SLICE]
        answer = await rig.kubelet.allocate(SLICE, first)
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == first
        assert "/run/tranche/simulator/state" in {mount.container_path for mount in answer.mounts}
        await rig.inventory.refresh()
        (held,) = rig.inventory.latest.value.view.allocations
        assert str(held.keeper) == "a pod that is being admitted"
        assert [device_uuid(grant, rig.host.driver.observe().gpus[0]) for grant in held.grants] == [first]
        with pytest.raises(grpc.aio.AioRpcError, match="unknown device: MIG-unknown"):
            await rig.kubelet.allocate(SLICE, "MIG-unknown")
        with pytest.raises(grpc.aio.AioRpcError, match="unknown device"):
            await rig.kubelet.allocate(GPU, second)

    run(tmp_path, scenario)


def test_in_another_mode_only_what_pods_have_is_offered_on_and_nothing_is_given(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1))
        await rig.counts({GPU: (1, 1), SLICE: (2, 2)})
        given, other = rig.kubelet.devices[SLICE]
        await rig.kubelet.allocate(SLICE, given)
        rig.kube_node.publish(KubeNode("n", labels={MODE_LABEL: "dynamic"}))
        await rig.counts({GPU: (1, 0), SLICE: (2, 1)})
        assert rig.healthy(SLICE) == [given]
        with pytest.raises(grpc.aio.AioRpcError, match="the node is in mode dynamic"):
            await rig.kubelet.allocate(SLICE, other)
        rig.kube_node.publish(KubeNode("n"))
        await rig.counts({GPU: (1, 1), SLICE: (2, 2)})
        await rig.kubelet.allocate(SLICE, other)

    run(tmp_path, scenario, ways=AdvertisementState())


def test_a_gpu_that_claims_are_shown_is_not_listed_before_that_is_over(tmp_path: Path) -> None:
    ways = AdvertisementState()

    async def scenario(rig: Rig) -> None:
        first, second = (gpu.uuid for gpu in rig.host.view().node)
        await until(lambda: ways.plugin.synced, "the plugin looked")
        await rig.counts({GPU: (0, 0)})
        ways.claims.publish(frozenset({first}))
        await rig.counts({GPU: (1, 1)})
        assert {each.gpu_uuid for each in ways.plugin.value.grants} == {second}
        ways.claims.publish(frozenset())
        await rig.counts({GPU: (2, 2)})

    run(tmp_path, scenario, ways=ways, claims_known=False)


def test_a_node_whose_resource_slices_cannot_be_read_offers_its_gpus_after_a_while(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (0, 0)})
        rig.skip(UNKNOWN_SECONDS)
        await rig.counts({GPU: (2, 2)})

    run(tmp_path, scenario, ways=AdvertisementState(), claims_known=False)


def test_what_was_listed_counts_as_listed_until_kubelet_and_node_show_that_it_is_not(tmp_path: Path) -> None:
    ways = AdvertisementState()

    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (2, 2)})
        rig.kube_node.publish(KubeNode("n", labels={MODE_LABEL: "dynamic"}, allocatable={GPU: "2"}))
        await rig.counts({GPU: (0, 0)})
        assert len(ways.plugin.value.grants) == 2
        rig.kube_node.publish(KubeNode("n", labels={MODE_LABEL: "dynamic"}, allocatable={GPU: "0"}))
        await until(lambda: not ways.plugin.value.grants, "the other way is free")

    run(tmp_path, scenario, ways=ways)


def test_a_gpu_that_is_still_cut_on_demand_is_no_whole_one(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.kube_node.publish(KubeNode("n", labels={MODE_LABEL: "dynamic"}))
        await rig.counts({GPU: (0, 0)})
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1))
        cut, whole = (gpu.uuid for gpu in rig.host.view().node)
        assert "GpuStillCut" not in rig.api.reasons
        rig.kube_node.publish(KubeNode("n", labels={MODE_LABEL: "static"}))
        await rig.counts({GPU: (2, 1)})
        await until(lambda: "GpuStillCut" in rig.api.reasons, "said")
        assert "2 slices created on demand" in rig.api.events[-1][2]
        with pytest.raises(grpc.aio.AioRpcError, match="it still has"):
            await rig.kubelet.allocate(GPU, cut)
        await rig.kubelet.allocate(GPU, whole)
        rig.laid_out = True  # as a layout wants them: NVIDIA's strategy none gives such GPUs away as well
        rig.kube_node.publish(KubeNode("n", labels={MODE_LABEL: "static", "nvidia.com/mig.config": "all-1g.5gb"}))
        await rig.counts({GPU: (2, 2)})

    run(tmp_path, scenario, ways=AdvertisementState(), strategy="none")


def test_without_a_driver_for_claims_the_mode_means_nothing(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.kube_node.publish(KubeNode("n", labels={MODE_LABEL: "dynamic"}))
        await rig.counts({GPU: (2, 2)})

    run(tmp_path, scenario)


def test_draining_devices_are_withdrawn_refused_and_come_back(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1))
        await rig.counts({GPU: (1, 1), SLICE: (2, 2)})
        draining, _ = rig.kubelet.devices[SLICE]
        rig.inventory.mark_draining(frozenset({draining}))
        with pytest.raises(grpc.aio.AioRpcError, match="a change in progress"):
            await rig.kubelet.allocate(SLICE, draining)
        await rig.counts({GPU: (1, 1), SLICE: (1, 1)})
        rig.inventory.mark_draining(frozenset())
        await rig.counts({GPU: (1, 1), SLICE: (2, 2)})

    run(tmp_path, scenario)


def test_a_device_that_drains_right_after_it_was_given_stays_in_the_list(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1))
        await rig.counts({GPU: (1, 1), SLICE: (2, 2)})
        given, other = rig.kubelet.devices[SLICE]
        await rig.kubelet.allocate(SLICE, given)
        rig.inventory.mark_draining(frozenset({given, other}))
        await rig.counts({GPU: (1, 1), SLICE: (2, 0)})
        await rig.inventory.refresh()
        rig.skip(GRACE_SECONDS)
        await until(lambda: list(rig.kubelet.devices[SLICE]) == [given], "the other one has left")

    run(tmp_path, scenario)


def test_nothing_is_offered_before_it_is_known_what_is_to_go(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1))
        assert rig.kubelet.counts() == {}
        draining = rig.host.view().node.gpus[0].instances[0].compute_instances[0].uuid
        rig.inventory.mark_draining(frozenset({draining}))
        await rig.counts({GPU: (1, 1), SLICE: (1, 1)})

    run(tmp_path, scenario, marks_to_come=True)


def test_an_xid_makes_every_sibling_sick_until_a_quiet_minute_has_passed(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1), ("2g.10gb", 2))
        await rig.counts({GPU: (1, 1), SLICE: (2, 2), "nvidia.com/mig-2g.10gb": (1, 1)})
        machine = rig.node.machine
        await rig.strike(
            {GPU: (1, 1), SLICE: (2, 0), "nvidia.com/mig-2g.10gb": (1, 0)},
            lambda: machine.inject_xid(1, 31),
            lambda: machine.inject_xid(0, 48),
        )
        await until(lambda: "GpuUnhealthy" in rig.api.reasons, "said")
        assert "XID 48" in rig.api.events[-1][2]
        rig.skip(QUIET_SECONDS)
        await rig.counts({GPU: (1, 1), SLICE: (2, 2), "nvidia.com/mig-2g.10gb": (1, 1)})

    run(tmp_path, scenario)


def test_nothing_more_of_a_cordoned_gpu_is_given_to_pods_and_none_loses_anything(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (2, 2)})
        gpu = rig.host.view().node.gpus[0]
        await rig.kubelet.allocate(GPU, gpu.uuid)
        held = rig.host.view().allocations
        cordon(rig.host, gpu, user="ada", reason="its fan", clock=lambda: 1.0)
        await rig.inventory.refresh()
        await rig.counts({GPU: (2, 1)})
        await until(lambda: "GpuUnhealthy" in rig.api.reasons, "said")
        assert "cordoned by ada: its fan" in rig.api.events[-1][2]
        assert rig.host.view().allocations == held
        assert uncordon(rig.host, gpu, user="ada", clock=lambda: 2.0)
        await rig.inventory.refresh()
        await rig.counts({GPU: (2, 2)})

    run(tmp_path, scenario)


def test_a_gpu_that_an_administrator_has_prohibited_is_given_to_no_pod(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (2, 2)})
        closed = rig.host.view().node.gpus[0].uuid
        rig.host.driver.set_compute_mode(closed, ComputeMode.PROHIBITED)
        await rig.inventory.refresh()
        await rig.counts({GPU: (2, 1)})
        with pytest.raises(grpc.aio.AioRpcError, match="PROHIBITED"):
            await rig.kubelet.allocate(GPU, closed)
        await until(lambda: "GpuUnhealthy" in rig.api.reasons, "said")
        assert "PROHIBITED" in rig.api.events[-1][2]
        assert not rig.host.view().allocations
        rig.host.driver.set_compute_mode(closed, ComputeMode.DEFAULT)
        await rig.inventory.refresh()
        await rig.counts({GPU: (2, 2)})
        await rig.kubelet.allocate(GPU, closed)

    run(tmp_path, scenario)


def test_an_xid_of_one_instance_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1))
        await rig.counts({GPU: (1, 1), SLICE: (2, 2)})
        sick = rig.host.view().node.gpus[0].instances[1]
        machine = rig.node.machine
        await rig.strike(
            {GPU: (1, 1), SLICE: (2, 1)},
            lambda: machine.inject_xid(0, 95, gpu_instance_id=sick.id, compute_instance_id=0),
        )
        assert rig.kubelet.devices[SLICE][sick.compute_instances[0].uuid].health == "Unhealthy"

    run(tmp_path, scenario)


def test_a_lost_gpu_keeps_its_devices_listed_as_sick_until_it_is_back(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1))
        await rig.counts({GPU: (1, 1), SLICE: (2, 2)})
        rig.node.machine.inject_lost(0)
        await rig.inventory.refresh()
        await rig.counts({GPU: (1, 1), SLICE: (2, 0)})
        rig.node.machine.inject_lost(0, lost=False)
        await rig.inventory.refresh()
        await rig.counts({GPU: (1, 1), SLICE: (2, 2)})

    run(tmp_path, scenario)


def test_gpus_that_cannot_be_read_for_long_are_not_given_away(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (2, 2)})
        rig.node.machine.inject_error("nvmlDeviceGetCount_v2", 999, calls=1_000_000)
        with pytest.raises(TrancheError):
            await rig.inventory.refresh()
        await asyncio.sleep(1.5)
        assert rig.kubelet.counts() == {GPU: (2, 2)}, "one failure says little"
        rig.skip(BLIND_SECONDS)
        await rig.counts({GPU: (2, 0)})
        rig.node.machine.clear_injections()
        await rig.inventory.refresh()
        await rig.counts({GPU: (2, 2)})

    run(tmp_path, scenario)


def test_a_kubelet_that_was_long_away_is_not_told_that_everything_is_sick(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (2, 2)})
        rig.holdings.failing = True
        await rig.kubelet.stop()
        rig.kubelet.socket.unlink(missing_ok=True)
        with pytest.raises(TrancheError):
            await rig.inventory.refresh()
        await until(lambda: "no kubelet" in rig.plugin.ready().why, "noticed")
        rig.skip(BLIND_SECONDS)
        await asyncio.sleep(1)
        await rig.kubelet.start()
        await rig.counts({GPU: (2, 2)})

    run(tmp_path, scenario)


def test_an_invalid_single_layout_is_zero_with_an_event_and_heals(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.api.failures = 1
        await rig.cut(0, ("1g.5gb", 0))
        await rig.counts({GPU: (0, 0)})
        await until(lambda: rig.plugin.ready().ready, "an invalid layout is no failure of the plugin")
        await until(lambda: not rig.api.failures, "it was tried")
        rig.skip(10)
        await until(lambda: "MigStrategySingleInvalid" in rig.api.reasons, "said once the API server answers")
        (said,) = [event for event in rig.api.events if event[1] == "MigStrategySingleInvalid"]
        assert said[0] is KubeEventType.WARNING
        assert "same migEnabled value: GPU 1 is not in MIG mode" in said[2]
        await rig.cut(1, ("1g.5gb", 0), ("1g.5gb", 1))
        await rig.counts({GPU: (3, 3)})

    socket = str(tmp_path / "plugins" / "kubelet.sock")
    run(tmp_path, scenario, flags={"--mig-strategy": "single", "--kubelet-socket": socket})


def test_a_config_map_is_followed_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0))
        await until(lambda: "ConfigMap plugin does not exist" in rig.config.ready().why, "no configuration yet")
        assert not rig.plugin.ready().ready
        await until(lambda: rig.api.reasons == ["DevicePluginConfigInvalid"], "said from the start on")
        data = {"default": "version: v1", "cut": "version: v1\nflags: {migStrategy: mixed}"}
        rig.api.config_map.publish(data)
        await rig.counts({GPU: (2, 2)})
        rig.kube_node.publish(KubeNode("n", labels={"nvidia.com/device-plugin.config": "cut"}))
        await rig.counts({GPU: (1, 1), SLICE: (1, 1)})
        rig.api.config_map.publish({**data, "cut": "version: v1\nflags: {migStrategy: both}"})
        await until(lambda: "'both' is not one of" in rig.api.events[-1][2], "said")
        assert rig.api.reasons == ["DevicePluginConfigInvalid"] * 2
        assert rig.known({GPU: (1, 1), SLICE: (1, 1)})
        rig.api.config_map.publish({**data, "cut": "version: v1\nflags: {migStrategy: none}"})
        rig.skip(10)
        await until(lambda: rig.kubelet.counts()[GPU] == (2, 2), "the corrected one is in effect")

    async def main(rig: Rig) -> None:
        rig.api.config_map.publish(None)
        await scenario(rig)

    socket = str(tmp_path / "plugins" / "kubelet.sock")
    run(tmp_path, main, config_map="plugin", flags={"--kubelet-socket": socket})


def test_cdi_specifications_are_there_before_the_devices_are(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        specification = rig.cdi_folder / "k8s.device-plugin.nvidia.com-gpu.json"

        def names() -> set[str]:
            return {device["name"] for device in json.loads(specification.read_text())["devices"]}

        await rig.counts({GPU: (2, 2)})
        assert names() == set(rig.kubelet.devices[GPU])
        await rig.cut(0, ("1g.5gb", 0))
        await rig.counts({GPU: (1, 1), SLICE: (1, 1)})
        (uuid,) = rig.kubelet.devices[SLICE]
        assert uuid in names()
        answer = await rig.kubelet.allocate(SLICE, uuid)
        assert [device.name for device in answer.cdi_devices] == [f"k8s.device-plugin.nvidia.com/gpu={uuid}"]
        assert not answer.envs

    socket = str(tmp_path / "plugins" / "kubelet.sock")
    flags = {"--mig-strategy": "mixed", "--kubelet-socket": socket, "--device-list-strategy": ["cdi-cri"]}
    run(tmp_path, scenario, flags=flags)


def test_devices_are_given_by_cdi_where_the_node_is_known_to_take_it(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (2, 2)})
        first = next(iter(rig.kubelet.devices[GPU]))
        answer = await rig.kubelet.allocate(GPU, first)
        assert [device.name for device in answer.cdi_devices] == [f"k8s.device-plugin.nvidia.com/gpu={first}"]
        assert not answer.envs
        assert not rig.api.reasons

    run(tmp_path, scenario, versions=BY_CDI)


def test_a_node_that_may_not_take_cdi_gives_devices_by_the_variable_and_says_what_that_means(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (2, 2)})
        first, second = rig.kubelet.devices[GPU]
        assert (await rig.kubelet.allocate(GPU, first)).envs["NVIDIA_VISIBLE_DEVICES"] == first
        await until(lambda: rig.api.reasons == ["VisibleDevicesNotEnforced"], "said")
        assert "containerd 1.7.27" in rig.api.events[0][2]
        rig.kube_node.publish(KubeNode("n", container_runtime=BY_CDI[0], kubelet_version=BY_CDI[1]))
        await until(lambda: rig.config.latest.value.cdi_only, "upgraded")
        assert not (await rig.kubelet.allocate(GPU, second)).envs

    run(tmp_path, scenario, versions=("containerd://1.7.27", "v1.36.3"))


def test_nothing_is_given_away_before_it_is_known_whether_the_node_takes_cdi(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.config.latest.publish(PluginConfig(kubelet_socket=str(rig.kubelet.socket)))
        await rig.counts({GPU: (2, 2)})
        first = next(iter(rig.kubelet.devices[GPU]))
        with pytest.raises(grpc.aio.AioRpcError, match="this node's container runtime"):
            await rig.kubelet.allocate(GPU, first)
        assert not rig.host.view().allocations

    run(tmp_path, scenario, versions=None)


def test_devices_whose_cdi_specification_cannot_be_written_are_not_offered(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await until(lambda: "cannot write the CDI specification" in rig.hosted.readiness()["device-plugin"].why, "said")
        assert not rig.kubelet.registrations
        rig.cdi_folder.unlink()
        await rig.counts({GPU: (2, 2)})

    (tmp_path / "cdi").touch()
    socket = str(tmp_path / "plugins" / "kubelet.sock")
    run(tmp_path, scenario, flags={"--kubelet-socket": socket, "--device-list-strategy": ["cdi-cri"]})


def test_a_resource_that_the_node_counts_and_nobody_serves_goes_to_zero(tmp_path: Path) -> None:
    stale = {GPU: "2", "nvidia.com/mig-7g.40gb": "8", "nvidia.com/pgpu": "3", "example.com/gpu": "4"}

    async def scenario(rig: Rig) -> None:
        rig.kube_node.publish(KubeNode("n", capacity=stale, allocatable=stale))
        await rig.counts({GPU: (2, 2)})
        await asyncio.sleep(1)
        assert rig.kubelet.counts() == {GPU: (2, 2)}, "not before it is sure"
        rig.skip(SETTLE_SECONDS)
        await rig.counts({GPU: (2, 2), "nvidia.com/mig-7g.40gb": (0, 0)})
        await until(lambda: rig.plugin.ready().ready, "ready with it")
        rig.skip(10 * LINGER_SECONDS)
        await asyncio.sleep(1)
        assert not rig.kubelet.ended, "as long as the node counts it"
        healed = {**stale, "nvidia.com/mig-7g.40gb": "0"}
        rig.kube_node.publish(KubeNode("n", capacity=healed, allocatable=healed))
        await asyncio.sleep(1)
        rig.skip(LINGER_SECONDS)
        await until(lambda: rig.kubelet.ended == ["nvidia.com/mig-7g.40gb"], "then it is withdrawn")
        assert {each.resource_name for each in rig.kubelet.registrations} == {GPU, "nvidia.com/mig-7g.40gb"}

    run(tmp_path, scenario)


def test_another_plugin_for_a_resource_that_is_served_is_said(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (2, 2)})
        await asyncio.sleep(1.5)
        assert not rig.api.events, "the plugin's own socket is none of another"
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(rig.kubelet.folder / "nvidia-gpu.sock"))
            other.listen()
            await until(lambda: rig.api.reasons == ["DevicePluginConflict"], "said")
            assert GPU in rig.api.events[0][2]
            await asyncio.sleep(1.5)
        assert rig.api.reasons == ["DevicePluginConflict"], "once"
        assert rig.plugin.ready().ready

    run(tmp_path, scenario)


def test_slices_that_come_into_being_are_offered_under_a_name_that_was_abandoned(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.kube_node.publish(KubeNode("n", capacity={SLICE: "56"}, allocatable={SLICE: "56"}))
        await rig.counts({GPU: (2, 2)})
        rig.skip(SETTLE_SECONDS)
        await rig.counts({GPU: (2, 2), SLICE: (0, 0)})
        await rig.cut(0, ("1g.5gb", 0))
        await rig.counts({GPU: (1, 1), SLICE: (1, 1)})
        assert [each.resource_name for each in rig.kubelet.registrations].count(SLICE) == 1

    run(tmp_path, scenario)


def test_a_resource_of_another_living_plugin_is_left_alone(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.kube_node.publish(KubeNode("n", capacity={SLICE: "56"}, allocatable={SLICE: "56"}))
        await rig.counts({GPU: (2, 2)})
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(rig.kubelet.folder / "nvidia-mig-1g.5gb.sock"))
            other.listen()
            rig.skip(SETTLE_SECONDS)
            await asyncio.sleep(1.5)
            assert rig.kubelet.counts() == {GPU: (2, 2)}
        rig.skip(SETTLE_SECONDS)
        await rig.counts({GPU: (2, 2), SLICE: (0, 0)})

    run(tmp_path, scenario)


def test_linked_gpus_are_preferred_together(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (4, 4)})
        uuids = [gpu.uuid for gpu in rig.host.view().node.gpus]
        links = read_links()
        assert len(links) == 6
        assert all(score >= 100 for score in links.values()), "an A100 has NVLinks to the switch"
        chosen = await rig.kubelet.prefer(GPU, uuids, 2)
        assert set(chosen) <= set(uuids)
        assert len(chosen) == 2

    run(tmp_path, scenario, *["A100-40GB"] * 4)


def test_a_device_that_a_pod_has_is_offered_under_no_other_resource_when_the_strategy_changes(tmp_path: Path) -> None:
    config = "version: v1\nflags: {{migStrategy: {}}}\n"

    async def scenario(rig: Rig) -> None:
        rig.api.config_map.publish({"config.yaml": config.format("mixed")})
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1), ("1g.5gb", 2))
        await rig.counts({GPU: (0, 0), SLICE: (3, 3)})
        held, *free = rig.kubelet.devices[SLICE]
        await rig.kubelet.allocate(SLICE, held)
        rig.holdings.holders[held], rig.holdings.resources[held] = PodRef("ns", "old"), SLICE
        await rig.inventory.refresh()
        await rig.counts({GPU: (0, 0), SLICE: (3, 3)})
        rig.api.config_map.publish({"config.yaml": config.format("single")})
        await until(lambda: set(rig.healthy(GPU)) == set(free), "the slice of the pod stays out")
        with pytest.raises(grpc.aio.AioRpcError, match="unknown device"):
            await rig.kubelet.allocate(GPU, held)
        rig.holdings.holders.clear()
        await rig.inventory.refresh()
        await until(lambda: set(rig.healthy(GPU)) == {held, *free}, "the pod has ended")

    socket = str(tmp_path / "plugins" / "kubelet.sock")
    run(tmp_path, scenario, "A100-40GB", flags={"--kubelet-socket": socket}, config_map="plugin")


def test_what_a_kubelet_forgot_with_its_checkpoint_is_not_preferred_and_is_given_away_once_at_most(
    tmp_path: Path,
) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1), ("1g.5gb", 2))
        await rig.counts({GPU: (0, 0), SLICE: (3, 3)})
        first, second, third = rig.kubelet.devices[SLICE]
        old = PodRef("ns", "old")
        rig.running = [KubePod(old, "uid", phase="Running", resources=frozenset({SLICE}))]
        for device in (first, second):
            await rig.kubelet.allocate(SLICE, device)
            rig.holdings.holders[device], rig.holdings.resources[device] = old, SLICE
        await rig.inventory.refresh()
        rig.holdings.restart()  # it has lost its checkpoint: it lists the pod with nothing
        await rig.inventory.refresh()
        await rig.counts({GPU: (0, 0), SLICE: (3, 3)})
        assert await rig.kubelet.prefer(SLICE, [first, second, third], 1) == [third]
        assert await rig.kubelet.prefer(SLICE, [first, second], 1) == []
        with pytest.raises(grpc.aio.AioRpcError, match="another share"):
            await rig.kubelet.allocate(SLICE, first)
        await until(lambda: rig.healthy(SLICE) == [second, third], "it is not given to the next pod")
        rig.skip(INSISTED_SECONDS)
        await until(lambda: len(rig.healthy(SLICE)) == 3, "the scheduler counts the pod against the healthy ones")
        rig.running = []
        rig.skip(SETTLED_SECONDS)
        await until(lambda: set(rig.healthy(SLICE)) == {first, second, third}, "the pod has ended")
        assert await rig.kubelet.prefer(SLICE, [first, second], 1) == [first]

    run(tmp_path, scenario, "A100-40GB")


def test_a_kubelet_that_starts_hears_of_no_device_of_a_pod_that_was_deleted_meanwhile(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1))
        await rig.counts({GPU: (1, 1), SLICE: (2, 2)})
        first, second = rig.kubelet.devices[SLICE]
        old = PodRef("ns", "old")
        rig.running = [KubePod(old, "uid", resources=frozenset({SLICE}))]
        await rig.kubelet.allocate(SLICE, first)
        rig.holdings.holders[first], rig.holdings.resources[first] = old, SLICE
        await rig.inventory.refresh()
        await rig.kubelet.stop()
        rig.kubelet.socket.unlink(missing_ok=True)
        rig.holdings.restart()
        rig.running = []
        await rig.kubelet.start()
        await until(lambda: SLICE in rig.kubelet.devices, "the first list")
        assert rig.healthy(SLICE) == [second]

    run(tmp_path, scenario)


def test_what_a_kubelet_took_back_is_preferred_before_the_register_says_so(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0))
        await rig.counts({GPU: (1, 1), SLICE: (1, 1)})
        (only,) = rig.kubelet.devices[SLICE]
        await rig.kubelet.allocate(SLICE, only)
        assert await rig.kubelet.prefer(SLICE, [only], 1) == [only], "its admission failed"

    run(tmp_path, scenario)


def test_a_device_that_a_command_has_is_not_offered_until_it_is_given_back(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("1g.5gb", 0), ("1g.5gb", 1))
        await rig.counts({GPU: (0, 0), SLICE: (2, 2)})
        both = set(rig.kubelet.devices[SLICE])
        queue = Queue(rig.host)
        request = parse_request(mig_profile="1g.5gb")
        held = await asyncio.to_thread(
            queue.acquire, request, command="train.py", pid=1, patience=WaitLimit(False, None)
        )
        (grant,) = held.allocation.grants
        taken = device_uuid(grant, rig.host.driver.observe().gpus[0])
        with pytest.raises(grpc.aio.AioRpcError, match="another share"):
            await rig.kubelet.allocate(SLICE, taken)
        # Without another look: the next pod of a backlog would be turned away too.
        await rig.counts({GPU: (0, 0), SLICE: (1, 1)})
        await asyncio.to_thread(queue.release, held.allocation.id, why="test")
        await rig.inventory.refresh()
        await until(lambda: set(rig.healthy(SLICE)) == both, "it was given back")

    run(tmp_path, scenario, "A100-40GB")


SHARED = "version: v1\nsharing: {timeSlicing: {%sresources: [{name: nvidia.com/gpu, replicas: %d}]}}\n"


def test_pods_with_replicas_of_one_gpu_are_served_side_by_side(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (8, 8)})
        first, second = (gpu.uuid for gpu in rig.host.view().node.gpus)
        assert list(rig.kubelet.devices[GPU]) == [
            f"{uuid}::{number}" for uuid in (first, second) for number in range(4)
        ]
        chosen = await rig.kubelet.prefer(GPU, list(rig.kubelet.devices[GPU]), 2)
        assert chosen == [f"{first}::0", f"{first}::1"]
        for ids in (chosen, [f"{first}::2"]):
            answer = await rig.kubelet.allocate(GPU, *ids)
            assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == first
            assert len(answer.mounts) == len({mount.container_path for mount in answer.mounts})
        await rig.inventory.refresh()
        held = rig.inventory.latest.value.view.allocations
        assert [grant.mechanism for each in held for grant in each.grants] == ["time-slicing"] * 2
        assert {str(each.request.isolation) for each in held} == {"none"}
        await rig.counts({GPU: (8, 8)})
        assert (await rig.kubelet.prefer(GPU, [f"{first}::3", *(f"{second}::{number}" for number in range(4))], 1)) == [
            f"{second}::0"
        ], "spread"
        with pytest.raises(grpc.aio.AioRpcError, match="unknown device"):
            await rig.kubelet.allocate(GPU, first)
        with pytest.raises(grpc.aio.AioRpcError, match="unknown device"):
            await rig.kubelet.allocate(GPU, f"{first}::4")

    run(tmp_path, scenario, flags=whole_gpus(tmp_path), file=SHARED % ("", 4))


def whole_gpus(folder: Path) -> dict[str, str]:
    """The flags of a plugin with strategy none."""
    return {"--kubelet-socket": str(folder / "plugins" / "kubelet.sock")}


def test_a_request_for_more_than_one_replica_is_refused_where_it_shall_fail(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (4, 4)})
        one, two, *_ = rig.kubelet.devices[GPU]
        with pytest.raises(grpc.aio.AioRpcError, match="maximum request size for shared resources is 1; found 2"):
            await rig.kubelet.allocate(GPU, one, two)
        assert not rig.host.view().allocations
        await rig.kubelet.allocate(GPU, two)

    file = SHARED % ("failRequestsGreaterThanOne: true, ", 4)
    run(tmp_path, scenario, "A100-40GB", flags=whole_gpus(tmp_path), file=file)


def test_a_gpu_that_a_command_has_is_offered_in_no_replica_and_a_shared_one_to_no_command(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (8, 8)})
        first, second = (gpu.uuid for gpu in rig.host.view().node.gpus)
        await rig.kubelet.allocate(GPU, f"{first}::0")
        queue, request = Queue(rig.host), parse_request(gpus="1")
        none = WaitLimit(False, None)
        held = await asyncio.to_thread(queue.acquire, request, command="train.py", pid=1, patience=none)
        assert [grant.gpu_uuid for grant in held.allocation.grants] == [second]
        with pytest.raises(TrancheError):
            await asyncio.to_thread(queue.acquire, request, command="train.py", pid=1, patience=none)
        with pytest.raises(grpc.aio.AioRpcError, match="another share"):
            await rig.kubelet.allocate(GPU, f"{second}::0")
        await rig.counts({GPU: (4, 4)})
        await asyncio.to_thread(queue.release, held.allocation.id, why="test")
        await rig.inventory.refresh()
        await rig.counts({GPU: (8, 8)})

    run(tmp_path, scenario, flags=whole_gpus(tmp_path), file=SHARED % ("", 4))


def test_all_replicas_of_a_sick_gpu_are_sick(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (8, 8)})
        await rig.strike({GPU: (8, 4)}, lambda: rig.node.machine.inject_xid(0, 48))
        await until(lambda: "GpuUnhealthy" in rig.api.reasons, "said")
        rig.skip(QUIET_SECONDS)
        await rig.counts({GPU: (8, 8)})

    run(tmp_path, scenario, flags=whole_gpus(tmp_path), file=SHARED % ("", 4))


def test_replicas_that_pods_have_stay_listed_when_kubelet_and_agent_start_anew(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (4, 4)})
        held, *_ = rig.kubelet.devices[GPU]
        await rig.kubelet.allocate(GPU, held)
        rig.holdings.holders[held], rig.holdings.resources[held] = PodRef("ns", "a"), GPU
        await rig.inventory.refresh()
        listed = rig.holdings.restart()
        await rig.inventory.refresh()
        (allocation,) = rig.inventory.latest.value.view.allocations
        assert str(allocation.keeper) == "pod ns/a"
        with pytest.raises(grpc.aio.AioRpcError, match="another share"):
            await rig.kubelet.allocate(GPU, held)
        rig.holdings.holders |= listed
        await rig.inventory.refresh()
        await rig.counts({GPU: (4, 4)})

    run(tmp_path, scenario, "A100-40GB", flags=whole_gpus(tmp_path), file=SHARED % ("", 4))


def test_how_devices_are_shared_follows_the_config_map(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.api.config_map.publish({"config.yaml": SHARED % ("", 4)})
        await rig.counts({GPU: (4, 4)})
        held, *_ = rig.kubelet.devices[GPU]
        await rig.kubelet.allocate(GPU, held)
        rig.holdings.holders[held], rig.holdings.resources[held] = PodRef("ns", "a"), GPU
        await rig.inventory.refresh()
        rig.api.config_map.publish({"config.yaml": "version: v1"})
        await rig.counts({GPU: (0, 0)})
        named = SHARED % ("renameByDefault: true, ", 10)
        rig.api.config_map.publish({"config.yaml": named})
        await rig.counts({GPU: (0, 0), f"{GPU}.shared": (7, 7)})
        assert held not in rig.kubelet.devices[f"{GPU}.shared"], "the pod has it under the name from before"
        rig.holdings.holders.clear()
        await rig.inventory.refresh()
        await rig.counts({GPU: (0, 0), f"{GPU}.shared": (10, 10)})

    socket = str(tmp_path / "plugins" / "kubelet.sock")
    run(tmp_path, scenario, "A100-40GB", flags={"--kubelet-socket": socket}, config_map="plugin")
