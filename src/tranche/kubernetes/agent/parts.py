"""How an agent is set up, and its parts: device plugin, MIG manager, claim driver and its slices, feature labels, the node's
report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tranche.core.errors import TrancheError
from tranche.kubernetes.agent.boot_unit import Installation
from tranche.kubernetes.agent.metrics_server import MetricsSettings
from tranche.kubernetes.agent.node_reporter import GpuUseWatch, NodeReporter
from tranche.kubernetes.api.resource_slices import SliceClient
from tranche.kubernetes.backend_watch import LOOK_SECONDS, BackendComponent, CleanupTask
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS, AllocationBackend
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.component import Component
from tranche.kubernetes.device_plugin.config_source import ConfigSource, StartSettings
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
from tranche.kubernetes.rollout.rollout import Rollout
from tranche.kubernetes.rollout.ticket import RolloutLimit
from tranche.kubernetes.telling.told_view import NOT_MANAGED, LayoutReport
from tranche.node.claims import ClaimRegister
from tranche.planning.layouts.named_layouts import LayoutList


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How one agent is set up.

    `namespace` "" means the namespace named where the API server was found. `period` is in seconds. `daemon_set` is the DaemonSet
    that runs the agent, if any: when it is deleted, the agent removes what it keeps in `cdi_folder` and `kubelet_folder`.
    `pod_uid` is the uid of the agent's pod. `without` are the parts to leave out, by the words of the option. With a `budget` the
    MIG manager takes part in the rollout across all nodes of the DaemonSet. With `tell_view` the node's report is for people too.
    `metrics` is None when none are served. `boot` cuts the GPUs at boot, where the agent is to install it. With `stand_by` the
    agent is ready while it waits for another agent's end. `backend` is the administrator's word on how the cluster gives shares
    on demand, None to find out.
    """

    node_name: str
    kubeconfig: str | None
    namespace: str
    pod_resources_socket: Path
    health_host: str
    health_port: int
    period: float
    plugin: StartSettings
    metrics: MetricsSettings | None
    daemon_set: str
    cdi_folder: Path
    kubelet_folder: Path
    pod_uid: str
    without: Collection[str]
    layouts: MigSettings
    budget: RolloutLimit | None
    tell_view: bool
    boot: Installation | None
    stand_by: bool
    backend: AllocationBackend | None


def build_parts(services: NodeContext, config: ConfigSource, options: AgentOptions) -> Iterator[Component]:
    """The parts that the options do not leave out."""
    told, layouts = NOT_MANAGED, LatestValue[LayoutList]()
    use: LatestValue[str] = LatestValue()
    by_claims = "dra" not in options.without
    ways = AdvertisementState() if {"dra", "device-plugin"}.isdisjoint(options.without) else None
    if "device-plugin" not in options.without:
        laid_out = partial(_laid_out, services)
        yield DevicePlugin(services, config, cdi_folder=options.cdi_folder, ways=ways, laid_out=laid_out)
    if "mig-manager" not in options.without:
        rollout = None if options.budget is None else Rollout(services, options.budget, options.daemon_set)
        manager = MigManager(services, options.layouts, rollout=rollout)
        told = LayoutReport(True, options.layouts.policy, options.layouts.heeds_mode, rollout is not None)
        layouts = manager.layouts
        yield manager
    if "feature-labels" not in options.without:
        yield FeatureLabelWriter(services, config.strategy, config.sharing, heeds_mode=by_claims)
    if by_claims:
        driver = ClaimDriver(
            services,
            kubelet_folder=options.kubelet_folder,
            instance=options.pod_uid,
            cdi_folder=options.cdi_folder,
            files=config.files,
            configured=config.latest.first,
        )
        # The kubelet returns its pods' claims to this driver alone, and ends no such pod before that.
        yield with_claims(services, driver, driver.run)
        slices = SliceClient(services.connection, services.node_name, DRIVER)
        publisher = SlicePublisher(services, slices, ways=ways)
        # While the driver is there, the kubelet leaves the slices alone, and the scheduler would keep allocating them.
        yield with_claims(services, publisher, publisher.withdraw)
        yield ShareDriver(services, config, cdi_folder=options.cdi_folder)
    if options.tell_view:
        watch = GpuUseWatch(services)
        use = watch.latest
        yield watch
    if options.tell_view or by_claims:
        yield NodeReporter(services, told, layouts, use, to_people=options.tell_view)


def with_claims(
    services: NodeContext,
    component: Component,
    settle: Callable[[], Coroutine[None, None, None]],
    look_seconds: float = LOOK_SECONDS,
) -> BackendComponent:
    """Runs the component in a cluster with claims; in another it settles while the kubelet may have claims to give back."""
    owed = CleanupTask(partial(_claims_left, services), settle)
    return BackendComponent(component, services.backend, BY_CLAIMS, owed=owed, look_seconds=look_seconds)


async def _claims_left(services: NodeContext) -> bool:
    """Whether the kubelet may still have claims to give back: a pod has claims, or the register says so."""
    if services.node_pods.synced and any(pod.claims for pod in services.node_pods.value):
        return True
    try:
        return bool(await asyncio.to_thread(ClaimRegister(services.host).held))
    except TrancheError:
        return True  # not known


def _laid_out(services: NodeContext) -> bool:
    """Whether the node shows that a layout has cut its GPUs."""
    node = services.node.value if services.node.synced else None
    return node is not None and node.labels.get(STATE_LABEL) == MigState.SUCCESS
