"""Three hundred agents at one real API server: what they ask at rest, after an edit of the shared layouts, after its restart.

The agents' own code runs in one process, each on a machine that is only thought of: eight A100 whose change takes 3 s. What an
agent asks beside this is a list of its node's pods when its kubelet has started, and at each start of a pod with a slice.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from cluster.cluster import Cluster

from bench.machine import empty_machine
from bench.own_cluster import own_cluster
from bench.report import Report
from tranche.core.allocation import NodeView
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection, ApiResponse
from tranche.kubernetes.api.kubeconfig import ApiServer, find_api_server
from tranche.kubernetes.api.object_client import LeaseClient
from tranche.kubernetes.feature_labels.labeler import FeatureLabelWriter
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.mig_manager.manager import MigManager, MigSettings
from tranche.kubernetes.node.gpu_events import DeviceHealthWatch, GpuEventWatch
from tranche.kubernetes.node.inventory import Inventory
from tranche.kubernetes.node.node_watch import NodeWatch, pod_watch
from tranche.kubernetes.node.pod_register import PodRegister
from tranche.kubernetes.node.replicas import NOT_SHARED, ReplicaPolicy
from tranche.kubernetes.node.resources import MigStrategy
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.rollout.rollout import Rollout
from tranche.kubernetes.rollout.ticket import RolloutLimit, parse_budget
from tranche.node.host import Host
from tranche.planning.steps.plan import Plan, apply

LAYOUTS = "tranche-layouts"
NAMESPACE = "tranche-system"
DAEMON_SET = "tranche-agent"
CUT_SECONDS = 3.0
"""How long a change takes here: about what eight A100 take for 56 slices, operands not counted."""
NODES = 300
IDLE_SECONDS = 60.0
BUDGET = "10%"
_LAYOUT = (
    "version: v1\nmig-configs: {{shared: [{{devices: all, mig-enabled: true, mig-devices: {{{profile}: {count}}}}}]}}"
)
_POLL_SECONDS = 0.1


def run(report: Report) -> None:
    with own_cluster({}) as cluster, tempfile.TemporaryDirectory() as folder:
        logging.getLogger("tranche").setLevel(logging.ERROR)
        asyncio.run(_measure(report, cluster, Path(folder)))


async def _measure(report: Report, cluster: Cluster, folder: Path) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(NODES))
    names = [f"node-{index:03}" for index in range(NODES)]
    await asyncio.to_thread(_make_objects, cluster, names)
    fleet = _Fleet(find_api_server(str(cluster.kubeconfig), {}), names, folder)
    phases = []
    try:
        await fleet.until_all(7)
        phases.append(await _phase(fleet, "at rest", lambda: asyncio.sleep(IDLE_SECONDS)))

        async def edit() -> None:
            await asyncio.to_thread(cluster.apply, _config_map("3g.20gb", 2))
            await fleet.until_all(2)

        phases.append(await _phase(fleet, "all nodes are partitioned after the ConfigMap is edited", edit))
        changed = fleet.most

        async def restart() -> None:
            await asyncio.to_thread(_restart, cluster)
            # Each agent has a fourth, which is counted from its first line: when a bookmark comes, within a minute.
            while fleet.counts.watches < 3 * NODES:
                await asyncio.sleep(_POLL_SECONDS)

        phases.append(
            await _phase(fleet, "most watches are open again after the API server is killed and restarted", restart)
        )
    finally:
        await fleet.end()
    limit = fleet.budget.nodes(NODES)
    report.section(
        f"{NODES} agents at one API server",
        f"The agents of {NODES} nodes share one layout, and at most {BUDGET} of the nodes can change at once.",
        f"Each node has eight simulated A100 GPUs, and each change takes {CUT_SECONDS:g} seconds. The API server is real.",
    )
    report.table(["", "seconds", "requests", "per second", "in the busiest second", "per node", "watches open"], phases)
    report.verdict(f"At most {limit} nodes may change at once, and up to {changed} did.", changed <= limit)


class _Fleet:
    def __init__(self, server: ApiServer, names: list[str], folder: Path) -> None:
        self.counts = Counts()
        self.budget: RolloutLimit = parse_budget(BUDGET)
        self.most = 0
        view = empty_machine(8)
        self.agents = [FleetAgent(server, name, view, self.budget, folder, self.counts) for name in names]
        self._tasks = [asyncio.create_task(agent.run()) for agent in self.agents]

    async def until_all(self, instances: int) -> None:

        def has(agent: FleetAgent) -> bool:
            return all(len(gpu.instances) == instances for gpu in agent.machine.view.node)

        while not all(map(has, self.agents)):
            self.most = max(self.most, sum(agent.machine.changing for agent in self.agents))
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(_POLL_SECONDS)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _phase(fleet: _Fleet, title: str, play: Callable[[], Awaitable[None]]) -> list[str]:
    fleet.most = 0
    before, began = fleet.counts.requests, time.monotonic()
    await play()
    took = time.monotonic() - began
    total = fleet.counts.requests - before
    peak = max((count for second, count in fleet.counts.by_second.items() if second >= int(began)), default=0)
    figures = f"{took:.1f}", total, f"{total / took:.1f}", peak, f"{total / NODES:.1f}", fleet.counts.watches
    return [title, *map(str, figures)]


def _restart(cluster: Cluster) -> None:
    cluster.kill9("kube-apiserver")
    cluster.start_component("kube-apiserver")


def _config_map(profile: str, count: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": LAYOUTS, "namespace": NAMESPACE},
        "data": {"config.yaml": _LAYOUT.format(profile=profile, count=count)},
    }


def _make_objects(cluster: Cluster, names: list[str]) -> None:
    """Nodes that no kubelet serves, and a DaemonSet that is to run on each of them."""
    labels = {"tranche.dev/gpu": "true", "nvidia.com/mig.config": "shared"}
    image = {"name": "agent", "image": "none"}
    pods = {"matchLabels": {"app": DAEMON_SET}}
    everywhere = [{"operator": "Exists"}]
    spec = {"nodeSelector": {"tranche.dev/gpu": "true"}, "containers": [image], "tolerations": everywhere}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}} for name in names),
    )
    cluster.apply(
        _config_map("1g.5gb", 7),
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": DAEMON_SET, "namespace": NAMESPACE},
            "spec": {"selector": pods, "template": {"metadata": {"labels": {"app": DAEMON_SET}}, "spec": spec}},
        },
    )


class Counts:
    """Requests in all, and by second; `watches` are those that are open now."""

    def __init__(self) -> None:
        self.requests = 0
        self.by_second: Counter[int] = Counter()
        self.watches = 0

    def add(self) -> None:
        self.requests += 1
        self.by_second[int(time.monotonic())] += 1


class CountingConnection(ApiConnection):
    def __init__(self, server: ApiServer, counts: Counts) -> None:
        super().__init__(server)
        self._counts = counts

    async def ask(self, what: str, method: str, path: str, *rest: Any, **named: Any) -> ApiResponse:
        self._counts.add()
        return await super().ask(what, method, path, *rest, **named)

    async def follow(self, what: str, path: str, query: Mapping[str, str]) -> AsyncGenerator[Mapping[str, Any], None]:
        self._counts.add()
        opened = 0
        try:
            async for line in super().follow(what, path, query):
                self._counts.watches += 1 - opened
                opened = 1
                yield line
        finally:
            self._counts.watches -= opened


class _Machine:
    """GPUs that are cut by thinking of it; it stands for the node's host."""

    def __init__(self, view: NodeView, folder: Path, name: str) -> None:
        self.view = view
        self.places = SimpleNamespace(manager_name=folder / name)
        self.changing = False

    def change(self, decide: Callable[[NodeView], Plan], **_: object) -> Plan:
        """Decide, wait for as long as a change takes, and have it done."""
        plan = decide(self.view)
        if not plan.empty:
            self.changing = True
            time.sleep(CUT_SECONDS)
            self.view = apply(plan, self.view)
            self.changing = False
        return plan


class FleetAgent:
    """The parts of one agent that speak to the API server: node, pods, layouts, turns, labels."""

    def __init__(
        self, server: ApiServer, name: str, view: NodeView, budget: RolloutLimit, folder: Path, counts: Counts
    ) -> None:
        self.machine = _Machine(view, folder, name)
        self._connection = CountingConnection(server, counts)
        api = KubeClient(self._connection)
        self._watch, self._pods = NodeWatch(api, name), pod_watch(api, name)
        self._inventory = Inventory(self._look, clock=time.monotonic)
        services = NodeContext(
            node_name=name,
            namespace=NAMESPACE,
            api=api,
            connection=self._connection,
            leases=LeaseClient(self._connection, NAMESPACE),
            backend=LatestValue(),
            node=self._watch.latest,
            node_pods=self._pods.latest,
            inventory=self._inventory,
            gpu_events=cast(GpuEventWatch, None),
            device_health=cast(DeviceHealthWatch, None),
            pods=cast(PodRegister, None),
            host=cast(Host, self.machine),
            state_problem=LatestValue(),
        )
        rollout = Rollout(services, budget, DAEMON_SET)
        strategy: LatestValue[MigStrategy] = LatestValue()
        strategy.publish(MigStrategy.SINGLE)
        sharing: LatestValue[ReplicaPolicy] = LatestValue()
        sharing.publish(NOT_SHARED)
        self.manager = MigManager(services, MigSettings(config_map=LAYOUTS), rollout=rollout)
        self._labeler = FeatureLabelWriter(services, strategy, sharing)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for part in (self._watch, self._pods, self._inventory, self.manager, self._labeler):
                    group.create_task(part.run())
        finally:
            await self._connection.aclose()

    async def _look(self) -> NodeView:
        return self.machine.view
