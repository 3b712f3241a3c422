"""Builds the agent's parts from what they share: device plugin, MIG manager, claim driver and its slices, feature labels, the
node's report.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.hardware.control_groups import why_tied
from tranche.hardware.host_facts import read_pcie_roots
from tranche.hardware.nodes import DeviceFiles, DriverFiles, SimulatedDeviceFiles
from tranche.hardware.nvml_links import read_links
from tranche.kubernetes.agent.gpu_use_watch import GpuUseWatch
from tranche.kubernetes.agent.node_reporter import NodeReporter, ReportSource
from tranche.kubernetes.api.objects import KubeEventType, KubeNode
from tranche.kubernetes.api.resource_slices import SliceClient
from tranche.kubernetes.backend_watch import LOOK_SECONDS, BackendComponent, CleanupTask
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.device_plugin.announcements import ConditionReporter
from tranche.kubernetes.device_plugin.config import PluginConfig
from tranche.kubernetes.device_plugin.config_source import ConfigSource
from tranche.kubernetes.device_plugin.machine import Machine
from tranche.kubernetes.device_plugin.plugin import DevicePlugin
from tranche.kubernetes.dra.driver import ClaimDriver
from tranche.kubernetes.dra.publisher import SlicePublisher
from tranche.kubernetes.feature_labels.labeler import FeatureLabelWriter
from tranche.kubernetes.gated.agent.share_driver import ShareDriver
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.mig_manager.manager import MigManager, MigSettings
from tranche.kubernetes.mig_manager.state import STATE_LABEL, MigState
from tranche.kubernetes.node.advertisement_arbiter import AdvertisementState
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.rollout.budget import RolloutLimit
from tranche.kubernetes.rollout.own_ticket import RolloutNode
from tranche.kubernetes.rollout.rollout import Rollout
from tranche.kubernetes.telling.told_layouts import LayoutReport
from tranche.node.claims import ClaimRegister
from tranche.planning.layouts.named_layouts import LayoutList


def device_plugin(
    services: NodeContext, config: ConfigSource, *, cdi_folder: Path, ways: AdvertisementState | None = None
) -> DevicePlugin:
    """The device plugin for this machine: one with a driver, or a simulated one.

    With `ways` it heeds the node's mode.
    """

    def to_claims() -> Collection[str] | None:
        if services.backend.synced and services.backend.value not in BY_CLAIMS:
            return ()
        return ways.claims.value if ways is not None and ways.claims.synced else None

    def laid_out() -> bool:
        node = services.node.value if services.node.synced else None
        return node is not None and node.labels.get(STATE_LABEL) == MigState.SUCCESS

    return DevicePlugin(
        config,
        services.inventory,
        services.pods,
        services.device_health.faults,
        services.node,
        Machine(_device_files, read_links, services.host.daemons.records.pipes, why_tied),
        ConditionReporter(services.api, services.node, clock=time.monotonic),
        clock=time.monotonic,
        cdi_folder=cdi_folder,
        ways=ways,
        to_claims=to_claims,
        laid_out=laid_out,
    )


def mig_manager(
    services: NodeContext,
    _: ConfigSource,
    *,
    settings: MigSettings,
    budget: RolloutLimit | None,
    daemon_set: str,
    layouts: LatestValue[LayoutReport],
) -> MigManager:
    """The MIG manager; with a budget it takes part in the rollout across all nodes that run `daemon_set`.

    It reports in `layouts` what it makes of the label that names a layout.
    """

    def offered(offer: LayoutList) -> None:
        layouts.publish(LayoutReport(True, settings.policy, settings.heeds_mode, budget is not None, offer))

    if budget is None:
        return MigManager(services, settings, offered=offered)

    def uid() -> str:
        node = services.node.value if services.node.synced else None
        return "" if node is None else node.uid

    rollout = Rollout(
        services.leases,
        budget,
        lambda: services.api.daemon_set_size(services.namespace, daemon_set),
        RolloutNode(services.node_name, uid),
        clock=time.monotonic,
        random=random.random,
    )
    return MigManager(services, settings, rollout=rollout, offered=offered)


def feature_labels(services: NodeContext, config: ConfigSource, *, heeds_mode: bool) -> FeatureLabelWriter:
    """The feature labels, under the device plugin's strategy and, with `heeds_mode`, the node's mode."""
    return FeatureLabelWriter(services, config.strategy, config.sharing, heeds_mode=heeds_mode)


def node_report(
    services: NodeContext,
    _: ConfigSource,
    *,
    to_people: bool,
    layouts: LatestValue[LayoutReport],
    refused: LatestValue[Mapping[str, str]],
    use: LatestValue[str],
) -> NodeReporter:
    """The node's reporter: to people, and to a controller where one chooses. `layouts` is what the MIG manager makes of a
    layout's name, `refused` why pods, by uid, cannot have their chosen share, `use` how much the GPUs are used.
    """
    inventory, health = services.inventory, services.device_health

    async def say(node: KubeNode, reason: str, message: str) -> None:
        await services.api.create_node_event(node, KubeEventType.WARNING, reason, message)

    news = ReportSource(
        inventory.latest,
        services.node,
        services.backend,
        lambda: inventory.ready().ready,
        health.faults,
        refused,
        layouts,
        use,
    )
    return NodeReporter(services.leases, news, to_people=to_people, clock=time.monotonic, say=say)


def gpu_use_watch(services: NodeContext, _: ConfigSource, *, use: LatestValue[str]) -> GpuUseWatch:
    """The recorder of the GPUs' use; it publishes in `use` the text for the node's report."""
    return GpuUseWatch(services, use)


def share_driver(
    services: NodeContext, config: ConfigSource, *, cdi_folder: Path, refused: LatestValue[Mapping[str, str]]
) -> ShareDriver:
    """The driver that hands out shares chosen by a controller; `refused` is told why, by uid, pods cannot have theirs."""

    def files() -> DeviceFiles:
        return _device_files(config.latest.value)

    def folders() -> tuple[Path, Path | None]:
        settings = config.latest.value
        return settings.plugin_folder, Path(settings.kubelet_socket) if settings.kubelet_socket else None

    return ShareDriver(
        services,
        folders=folders,
        cdi_folder=cdi_folder,
        files=files,
        configured=config.latest.first,
        refused=refused,
        clock=time.monotonic,
    )


def claim_driver(
    services: NodeContext,
    config: ConfigSource,
    *,
    kubelet_folder: Path,
    instance: str,
    cdi_folder: Path,
    registered: LatestValue[bool],
    reserved: LatestValue[frozenset[str]],
    fallen: LatestValue[frozenset[str]],
    look_seconds: float = LOOK_SECONDS,
) -> BackendComponent:
    """The claim driver; `instance` is the uid of the agent's pod. `registered` is told whether the kubelet has the driver.

    `reserved` holds the devices shown as kept for larger requests; `fallen` is told the ended claims whose pods run on.
    """

    def files() -> DeviceFiles:
        return _device_files(config.latest.value)

    driver = ClaimDriver(
        services,
        kubelet_folder=kubelet_folder,
        instance=instance,
        cdi_folder=cdi_folder,
        files=files,
        configured=config.latest.first,
        clock=time.monotonic,
        registered=registered,
        reserved=reserved,
        fallen=fallen,
    )
    # The kubelet returns its pods' claims to this driver alone, and ends no such pod before that.
    return BackendComponent(
        driver,
        services.backend,
        BY_CLAIMS,
        owed=CleanupTask(partial(_claims_left, services), driver.run),
        look_seconds=look_seconds,
    )


async def _claims_left(services: NodeContext) -> bool:
    """Whether the kubelet may still have claims to give back: a pod has claims, or the register says so."""
    if services.node_pods.synced and any(pod.claims for pod in services.node_pods.value):
        return True
    try:
        return bool(await asyncio.to_thread(lambda: ClaimRegister(services.host).held()))
    except TrancheError:
        return True  # not known


def claim_slices(
    services: NodeContext,
    config: ConfigSource,
    *,
    registered: LatestValue[bool],
    reserved: LatestValue[frozenset[str]],
    fallen: LatestValue[frozenset[str]],
    ways: AdvertisementState | None = None,
) -> BackendComponent:
    """The publisher of this node's devices, once the driver is registered; with `ways` only of those that no kubelet counts."""

    def roots(view: NodeView) -> Mapping[str, str]:
        return read_pcie_roots({gpu.uuid: gpu.pci_bus_id for gpu in view.node if not gpu.lost})

    publisher = SlicePublisher(
        services,
        SliceClient(services.connection, services.node_name, DRIVER, random=random.random),
        pcie_roots=roots,
        registered=registered,
        reserved=reserved,
        fallen=fallen,
        ways=ways,
    )
    # While the driver is there, the kubelet leaves the slices alone, and the scheduler would keep allocating them.
    return BackendComponent(
        publisher, services.backend, BY_CLAIMS, owed=CleanupTask(partial(_claims_left, services), publisher.withdraw)
    )


def cdi_obstacle(config: PluginConfig, *, cdi_folder: Path) -> str:
    """Why this agent cannot write a CDI specification through which containers find the driver; "" when it can. Blocks."""
    if not os.access(cdi_folder, os.W_OK):
        return f"the agent cannot write to the folder {cdi_folder}"
    return _device_files(config).why_no_cdi()


def _device_files(config: PluginConfig) -> DeviceFiles:
    if simulated := os.environ.get("TRANCHE_SIM_STATE"):
        return SimulatedDeviceFiles(Path(simulated))
    in_container = Path(config.driver_root_in_container)
    return DriverFiles(
        driver_root=config.driver_root,
        dev_root=config.dev_root or config.driver_root,
        seen_at=str(in_container) if in_container.is_dir() else config.driver_root,
        hook_path=config.cdi_hook_path,
    )
