"""The agent as a process: wires what its parts share, serves until a signal, and ends within two seconds of it.

Its parts are the device plugin, the MIG manager, the claim driver and its slices, feature labels, and the node's report.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tranche.core.errors import LedgerUnavailable, TrancheError
from tranche.hardware.gpu_events import GpuEventStream, needs_recovery
from tranche.kubernetes.agent.boot_unit import BootUnit, Installation
from tranche.kubernetes.agent.leaving import give_gpus_back, last_look_at, take_files_along
from tranche.kubernetes.agent.metrics_server import MetricsServer, MetricsSettings
from tranche.kubernetes.agent.node_reporter import GpuUseWatch, NodeReporter
from tranche.kubernetes.agent.state_folder import StateFolderWatch
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.api.object_client import LeaseClient, SliceClient
from tranche.kubernetes.api.objects import KubeEventType, KubeNode
from tranche.kubernetes.backend_watch import LOOK_SECONDS, BackendComponent, BackendWatch, CleanupTask
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS, AllocationBackend
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.component import Component, Readiness
from tranche.kubernetes.device_plugin.config_source import ConfigSource, StartSettings, cdi_obstacle
from tranche.kubernetes.device_plugin.plugin import DevicePlugin
from tranche.kubernetes.dra.driver import ClaimDriver
from tranche.kubernetes.dra.publisher import SlicePublisher
from tranche.kubernetes.feature_labels.labeler import FeatureLabelWriter
from tranche.kubernetes.gated.agent.share_driver import ShareDriver
from tranche.kubernetes.kubelet.pod_resources import PodResourcesClient
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.mig_manager.manager import MigManager, MigSettings
from tranche.kubernetes.mig_manager.state import STATE_LABEL, MigState
from tranche.kubernetes.node.advertisement_arbiter import AdvertisementState
from tranche.kubernetes.node.gpu_events import DeviceHealthWatch, GpuEventWatch
from tranche.kubernetes.node.health import XidPolicy, xid_policy
from tranche.kubernetes.node.inventory import Inventory, RegisterWatch
from tranche.kubernetes.node.node_watch import NodeWatch, pod_watch
from tranche.kubernetes.node.pod_register import PodRegister
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.rollout.rollout import Rollout
from tranche.kubernetes.rollout.ticket import RolloutLimit
from tranche.kubernetes.serving.http_server import serve_health
from tranche.kubernetes.serving.supervisor import Supervisor
from tranche.kubernetes.telling.told_view import NOT_MANAGED, LayoutReport
from tranche.node.claims import ClaimRegister
from tranche.node.host import Host
from tranche.planning.layouts.named_layouts import LayoutList

_COMPONENTS_END_SECONDS = 1.0
_THREADS_END_SECONDS = 0.7
# Enough for the inventory, driver events, a plan for each GPU, and the parts' reads of the kubelet's files, all at once.
_THREADS = 24
# How long one thread may hold the interpreter: the threads that answer the kubelet take many short turns, and would wait
# Python's default of 5 ms before each one while others compute what to publish.
_TURN_SECONDS = 0.0005

_log = logging.getLogger(__name__)


def run_agent(host: Host, options: AgentOptions, environ: Mapping[str, str]) -> None:
    """Serve until SIGTERM or SIGINT.

    KubeconfigInvalid when no API server is known, PluginConfigInvalid when the device plugin's settings are wrong, UsageError
    when the health port is taken, LedgerUnavailable when the state folder was deleted under it. Threads that still work a moment
    after the components have ended are abandoned: the process exits under them. That is safe at any point, as the ledger's
    journal is written for `kill -9`.
    """
    asyncio.run(_serve(host, options, environ))


async def _serve(host: Host, options: AgentOptions, environ: Mapping[str, str]) -> None:
    options.plugin.check()
    sys.setswitchinterval(_TURN_SECONDS)
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="blocking")
    loop.set_default_executor(threads)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = find_api_server(options.kubeconfig, environ)
    connection = ApiConnection(server)
    api = KubeClient(connection)
    node_watch = NodeWatch(api, options.node_name)
    pods_watch = pod_watch(api, options.node_name)
    pods = PodRegister(
        host,
        PodResourcesClient(options.pod_resources_socket),
        lambda: api.list_pods_on_node(options.node_name),
        clock=time.monotonic,
    )
    inventory = Inventory(pods.look, clock=time.monotonic, period=options.period)
    gpu_events = GpuEventWatch(GpuEventStream, inventory)
    namespace = options.namespace or server.namespace
    obstacle = partial(cdi_obstacle, cdi_folder=options.cdi_folder)
    plugin_config = ConfigSource(options.plugin, api, namespace, node_watch.latest, driver_obstacle=obstacle)
    state_folder = StateFolderWatch(host.places, stand_by=options.stand_by)
    tier_watch = BackendWatch(connection, options.backend)

    def xids() -> XidPolicy:
        config = plugin_config.latest
        known = config.value if config.synced else None
        return XidPolicy() if known is None else xid_policy(known.disabled_health_checks, known.enabled_health_checks)

    device_health = DeviceHealthWatch(
        gpu_events, inventory, needs_recovery=needs_recovery, policy=xids, clock=time.monotonic
    )
    services = NodeContext(
        node_name=options.node_name,
        namespace=namespace,
        api=api,
        connection=connection,
        leases=LeaseClient(connection, namespace),
        backend=tier_watch.latest,
        node=node_watch.latest,
        node_pods=pods_watch.latest,
        inventory=inventory,
        gpu_events=gpu_events,
        device_health=device_health,
        pods=pods,
        host=host,
        state_problem=state_folder.problem,
    )
    built = list(build_parts(services, plugin_config, options))
    components: list[Component] = [
        state_folder,
        node_watch,
        pods_watch,
        inventory,
        RegisterWatch(host.ledger.version, inventory),
        gpu_events,
        device_health,
        plugin_config,
        tier_watch,
        *built,
    ]
    boot_unit = None if options.boot is None else BootUnit(options.boot)
    if boot_unit is not None:
        components.append(boot_unit)
    metrics = None
    if options.metrics is not None:
        metrics = MetricsServer(services, options.metrics, built, readiness=lambda: node_agent.readiness())
        components.append(metrics)
    node_agent = Supervisor(components, clock=time.monotonic)

    def readiness() -> Mapping[str, Readiness]:
        return node_agent.readiness() if serving.is_set() else {state_folder.name: state_folder.ready()}

    serving = asyncio.Event()
    health = await serve_health(options.health_host, options.health_port, readiness)
    _log.info("serving", extra={"node": options.node_name, "api_server": server.url, "health_port": health.port})
    running = asyncio.create_task(_serve_alone(state_folder, serving, node_agent))
    ends = [asyncio.create_task(event.wait()) for event in (stopped, state_folder.lost)]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        _log.info("ending", extra={"node": options.node_name})
    finally:
        health.stop()
        inventory.keep_marks()
        for task in (running, *ends):
            task.cancel()
        last_look = asyncio.create_task(last_look_at(connection, namespace, options.daemon_set))
        await asyncio.wait({running}, timeout=_COMPONENTS_END_SECONDS)
        daemon_set = await last_look
        if daemon_set is not None and daemon_set.deleting:
            _log.info("the DaemonSet is being deleted: cleaning up", extra={"daemon_set": options.daemon_set})
            take_files_along(options.cdi_folder, options.kubelet_folder)
            await give_gpus_back(host, pods, partial(_say_of_node, api, node_watch.latest))
        if boot_unit is not None:
            boot_unit.end(daemon_set)
        _end_threads(threads, metrics, 1 if state_folder.lost.is_set() else 0)
    await connection.aclose()
    if state_folder.lost.is_set():
        raise LedgerUnavailable(
            state_folder.ready().why, hint="restart the agent to find out which pods hold which GPUs"
        )


async def _say_of_node(api: KubeClient, node: LatestValue[KubeNode | None], message: str) -> None:
    _log.warning("MPS daemons keep running", extra={"why": message})
    if node.synced and node.value is not None:
        await api.create_node_event(node.value, KubeEventType.WARNING, "MpsDaemonsStay", message)


async def _serve_alone(state_folder: StateFolderWatch, serving: asyncio.Event, node_agent: Supervisor) -> None:
    """Serve nothing until the folder is this agent's: another agent may be at work, with marks that this one does not know."""
    await state_folder.take()
    serving.set()
    await node_agent.run()


def _end_threads(threads: ThreadPoolExecutor, metrics: MetricsServer | None, code: int) -> None:
    """Wait for pending calls: closing the driver during one could hang forever. Exits with `code` if they do not end."""

    def wait() -> None:
        threads.shutdown(cancel_futures=True)
        if metrics is not None:
            metrics.join()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(_THREADS_END_SECONDS)
    if waiting.is_alive():
        _log.warning("exiting during a driver call or a plan: the next start finishes or undoes it")
        logging.shutdown()
        os._exit(code)


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
