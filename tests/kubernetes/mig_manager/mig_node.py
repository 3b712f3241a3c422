"""The MIG manager on a simulated machine, with its inventory and host, against the loopback API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.kubelet_stand_in import Kubelet
from tests.kubernetes.waiting import until
from tests.node.machines import Node, node_of
from tranche.hardware.gpu_events import GpuEventStream
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.object_client import LeaseClient
from tranche.kubernetes.api.objects import PodRef
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.mig_manager.manager import MigManager, MigSettings
from tranche.kubernetes.node.gpu_events import DeviceHealthWatch, GpuEventWatch
from tranche.kubernetes.node.health import XidPolicy
from tranche.kubernetes.node.inventory import Inventory
from tranche.kubernetes.node.node_watch import NodeWatch, pod_watch
from tranche.kubernetes.node.pod_register import PodRegister
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.rollout.rollout import Rollout
from tranche.kubernetes.rollout.ticket import parse_budget
from tranche.node.host import Host

NODE = "/api/v1/nodes/n1"
CONFIG_MAP = "/api/v1/namespaces/tranche/configmaps/layouts"


@dataclass
class ManagedNode:
    """A node in the cluster; `now` is the machine's monotonic clock in seconds, and stands still.

    `wants_reset` is what the driver says of its GPUs.
    """

    server: FakeApiServer
    api: KubeClient
    machine: Node
    inventory: Inventory
    host: Host
    kubelet: Kubelet
    services: NodeContext
    now: float = 90_000.0
    restarts: int = 0
    wants_reset: bool = False

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.server.objects[NODE]["metadata"].get("labels", {}))

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.server.objects[NODE]["metadata"].get("annotations", {}))

    @property
    def unschedulable(self) -> bool:
        return bool(self.server.objects[NODE].get("spec", {}).get("unschedulable"))

    @property
    def shown(self) -> tuple[str | None, str | None]:
        """State and reason, as the labels say them."""
        return self.labels.get("nvidia.com/mig.config.state"), self.labels.get("tranche.dev/mig.config.reason")

    @property
    def condition(self) -> tuple[str, str, str] | None:
        """Status, reason and message of the condition."""
        for each in self.server.objects[NODE].get("status", {}).get("conditions", ()):
            if each["type"] == "MigLayoutApplied":
                return each["status"], each["reason"], each["message"]
        return None

    @property
    def events(self) -> set[tuple[str, str]]:
        """Type and reason of each event about the node."""
        return {(each["type"], each["reason"]) for path, each in self.server.objects.items() if "/events/" in path}

    @property
    def reads(self) -> int:
        """How many times the node object was asked for; each round of the manager begins so."""
        return sum(each.path == NODE for each in self.server.lists())

    @property
    def standing(self) -> str:
        """All that tells why nothing goes on, for a test that waits in vain."""
        inventory, pods = self.services.inventory, self.services.node_pods
        holders = (
            [str(each.keeper) for each in inventory.latest.value.view.allocations] if inventory.latest.synced else []
        )
        return "; ".join(
            (
                f"shows {self.shown}, {self.condition}",
                f"{'cordoned' if self.unschedulable else 'not cordoned'}, annotations {self.annotations}",
                f"pods {sorted(path for path in self.server.objects if '/pods/' in path)}",
                f"of which the agent was told {[str(each.ref) for each in pods.value] if pods.synced else None}",
                f"the kubelet lists { ({uuid: str(pod) for uuid, pod in self.kubelet.holders.items()}) }",
                f"the register has {holders}, marked are {sorted(inventory.draining)}",
                f"last requests {[f'{each.method} {each.path} {each.body}'[:200] for each in self.server.requests[-4:]]}",
            )
        )

    def label(self, **values: str | None) -> None:
        """Set labels of nvidia.com, as an admin does: `mig_config="x"`."""
        labels = self.labels | {f"nvidia.com/{key.replace('_', '.', 1)}": value for key, value in values.items()}
        self._put(labels={key: value for key, value in labels.items() if value is not None})

    def set_labels(self, labels: Mapping[str, str]) -> None:
        """Set labels by their full keys."""
        self._put(labels=self.labels | dict(labels))

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """Set annotations."""
        self._put(annotations=self.annotations | dict(annotations))

    def config_map(self, text: str) -> None:
        """Write the ConfigMap of layouts."""
        self.server.put(CONFIG_MAP, {"data": {"config.yaml": text}})

    def pod(self, name: str, *, labels: Mapping[str, str] | None = None, namespace: str = "default") -> PodRef:
        """A running pod."""
        meta = {"labels": dict(labels or {}), "uid": name}
        body = {"metadata": meta, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
        self.server.put(f"/api/v1/namespaces/{namespace}/pods/{name}", body)
        return PodRef(namespace, name)

    def slices(self, gpu: int = 0) -> list[str]:
        """The slices of a GPU, sorted."""
        state = self.host.driver.observe().by_index(gpu)
        return sorted(str(name) for instance in state.instances for name in instance.slices)

    def slice_uuid(self, gpu: int, position: int) -> str:
        """The UUID of a slice by its rank on the GPU."""
        instances = sorted(self.host.driver.observe().by_index(gpu).instances, key=lambda i: i.placement)
        return instances[position].compute_instances[0].uuid

    @asynccontextmanager
    async def managed(self, settings: MigSettings | None = None, budget: str = "") -> AsyncIterator[MigManager]:
        """A manager that runs for the length of the block; with a budget it takes part in a rollout."""

        def restart(_: Path) -> None:
            self.restarts += 1

        manager = MigManager(
            self.services,
            settings or MigSettings(config_map="layouts"),
            rollout=self._rollout(budget) if budget else None,
            clock=lambda: self.now,
            boot=lambda: f"boot-{self.restarts}",
            restart=restart,
        )
        task = asyncio.create_task(manager.run())
        try:
            yield manager
        finally:
            ended_before = task.done()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert not ended_before, "the manager ended by itself"

    async def shows(self, state: str | None, reason: str | None = None) -> None:
        """Wait until the node shows it; success must be about the layout that is wished now."""

        def shown() -> bool:
            wished = f"'{self.labels.get('nvidia.com/mig.config')}'"
            about_it = state != "success" or (self.condition is not None and wished in self.condition[2])
            return self.shown == (state, reason) and about_it

        try:
            await until(shown)
        except TimeoutError:
            raise AssertionError(f"it does not show {(state, reason)}: {self.standing}") from None

    @property
    def tickets(self) -> list[str]:
        """The states of the rollout's tickets."""
        return [
            each["spec"]["holderIdentity"] for path, each in self.server.objects.items() if "tranche-layout." in path
        ]

    def _rollout(self, budget: str) -> Rollout:
        self.server.put("/apis/apps/v1/namespaces/tranche/daemonsets/agent", {"status": {"desiredNumberScheduled": 1}})
        loop = asyncio.get_running_loop()
        return Rollout(self.services, parse_budget(budget), "agent", clock=loop.time, random=lambda: 0.0)

    def _put(self, **metadata: Any) -> None:
        node = self.server.objects.get(NODE, {})
        self.server.put(NODE, {**node, "metadata": {**node.get("metadata", {}), **metadata}})


@asynccontextmanager
async def managed_node(folder: Path, *boards: str, machine_type: str = "") -> AsyncIterator[ManagedNode]:
    machine = node_of(folder, *boards, machine_type=machine_type)
    machine.machine.preload()
    async with api_server() as server:
        connection = ApiConnection(ApiServer(server.url), sleep=lambda _: asyncio.sleep(0.001))
        api = KubeClient(connection)
        server.put(NODE, {"metadata": {"uid": "u1", "labels": {}}})
        with machine.host() as host:
            kubelet = Kubelet()
            loop = asyncio.get_running_loop()
            pods = PodRegister(host, kubelet, lambda: api.list_pods_on_node("n1"), clock=loop.time)
            inventory = Inventory(pods.look, clock=loop.time, period=0.05)
            watch = NodeWatch(api, "n1")
            pods_watch = pod_watch(api, "n1")
            gpu_events = GpuEventWatch(GpuEventStream, inventory)
            device_health = DeviceHealthWatch(
                gpu_events,
                inventory,
                needs_recovery=lambda _: node.wants_reset,
                policy=XidPolicy,
                clock=lambda: node.now,
                recovery_seconds=0.01,
            )
            services = NodeContext(
                node_name="n1",
                namespace="tranche",
                api=api,
                connection=connection,
                leases=LeaseClient(connection, "tranche"),
                backend=LatestValue(),
                node=watch.latest,
                node_pods=pods_watch.latest,
                inventory=inventory,
                gpu_events=gpu_events,
                device_health=device_health,
                pods=pods,
                host=host,
                state_problem=LatestValue(),
            )
            node = ManagedNode(server, api, machine, inventory, host, kubelet, services)
            background = [asyncio.create_task(each.run()) for each in (watch, pods_watch, inventory, device_health)]
            try:
                yield node
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                await connection.aclose()


def on_node(
    folder: Path, test: Callable[[ManagedNode], Coroutine[Any, Any, None]], *boards: str, machine_type: str = ""
) -> None:
    """Run the test on a node with those GPUs."""

    async def run() -> None:
        async with managed_node(folder, *boards, machine_type=machine_type) as node:
            await test(node)

    asyncio.run(run())
