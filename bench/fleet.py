"""Three hundred agents at one real API server: what they ask at rest, after an edit of the shared layouts, after its restart.

The agents' own code runs in one process, each on a machine that is only thought of: eight A100 whose change takes 3 s. What an
agent asks beside this is a list of its node's pods when its kubelet has started, and at each start of a pod with a slice.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.cluster import Cluster

from bench.fleet_agent import DAEMON_SET, LAYOUTS, NAMESPACE, Counts, FleetAgent
from bench.machine import empty_machine
from bench.own_cluster import own_cluster
from bench.report import Report
from tranche.kubernetes.api.kubeconfig import ApiServer, find_api_server
from tranche.kubernetes.rollout.budget import RolloutLimit, parse_budget

NODES = 300
IDLE_SECONDS = 60.0
BUDGET = "10%"
_LAYOUT = (
    "version: v1\nmig-configs: {{shared: [{{devices: all, mig-enabled: true, mig-devices: {{{profile}: {count}}}}}]}}"
)
_POLL_SECONDS = 0.1


def run(report: Report) -> None:
    """Measure on a control plane of its own."""
    with own_cluster({}) as cluster, tempfile.TemporaryDirectory() as folder:
        logging.getLogger("tranche").setLevel(logging.ERROR)
        asyncio.run(_measure(report, cluster, Path(folder)))


async def _measure(report: Report, cluster: Cluster, folder: Path) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(NODES))
    names = [f"node-{index:03}" for index in range(NODES)]
    await asyncio.to_thread(_make_objects, cluster, names)
    fleet = _Fleet(find_api_server(str(cluster.kubeconfig), {}), names, folder)
    report.section(
        f"{NODES} agents at one API server",
        f"{NODES} nodes of 8 A100, a shared layout, rollout.maxUnavailable {BUDGET}; etcd, API server and agents on this machine",
    )
    try:
        await fleet.until_all(7)
        await _phase(report, fleet, "at rest", lambda: asyncio.sleep(IDLE_SECONDS))

        async def edit() -> None:
            await asyncio.to_thread(cluster.apply, _config_map("3g.20gb", 2))
            await fleet.until_all(2)

        await _phase(report, fleet, "after an edit of the ConfigMap", edit)
        limit = fleet.budget.nodes(NODES)
        report.verdict(f"at most {limit} nodes changed at once (seen: {fleet.most})", fleet.most <= limit)

        async def restart() -> None:
            await asyncio.to_thread(_restart, cluster)
            began = time.monotonic()
            while fleet.counts.watches < 3 * NODES:
                await asyncio.sleep(_POLL_SECONDS)
            report.table(["", "s"], [["every watch open again after", f"{time.monotonic() - began:.1f}"]])
            await asyncio.sleep(10)

        await _phase(report, fleet, "after a kill -9 and restart of the API server", restart)
        await _phase(report, fleet, "at rest after it", lambda: asyncio.sleep(IDLE_SECONDS))
    finally:
        await fleet.end()


class _Fleet:
    def __init__(self, server: ApiServer, names: list[str], folder: Path) -> None:
        self.counts = Counts()
        self.budget: RolloutLimit = parse_budget(BUDGET)
        self.most = 0
        view = empty_machine(8)
        self.agents = [FleetAgent(server, name, view, self.budget, folder, self.counts) for name in names]
        self._tasks = [asyncio.create_task(agent.run()) for agent in self.agents]

    async def until_all(self, instances: int) -> None:
        """Wait until every GPU has so many instances."""

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


async def _phase(report: Report, fleet: _Fleet, title: str, play: Callable[[], Awaitable[None]]) -> None:
    fleet.most = 0
    before, began = fleet.counts.requests.copy(), time.monotonic()
    await play()
    took = time.monotonic() - began
    made = fleet.counts.requests - before
    peak = max((count for second, count in fleet.counts.by_second.items() if second >= int(began)), default=0)
    total = sum(made.values())
    report.table(
        [title, "requests", "a second", "peak second", "a node", "watches open"],
        [
            [f"{took:.0f} s", total, f"{total / took:.1f}", peak, f"{total / NODES:.1f}", fleet.counts.watches],
            *(
                [f"  {what}", count, f"{count / took:.1f}", "", f"{count / NODES:.2f}", ""]
                for what, count in made.most_common(8)
            ),
        ],
    )


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
