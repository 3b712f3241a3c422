"""What an agent asks of the API server, without its node: its own code on a machine that is only thought of."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tranche.core.allocation import NodeView
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection, ApiResponse
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.leases import LeaseClient
from tranche.kubernetes.feature_labels.labeler import FeatureLabelWriter
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.mig_manager.manager import MigManager, MigSettings
from tranche.kubernetes.node.gpu_events import DeviceHealthWatch, GpuEventWatch
from tranche.kubernetes.node.inventory import Inventory
from tranche.kubernetes.node.node_watch import NodeWatch, PodWatch
from tranche.kubernetes.node.pod_register import PodRegister
from tranche.kubernetes.node.replicas import NOT_SHARED, ReplicaPolicy
from tranche.kubernetes.node.resources import MigStrategy
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.rollout.budget import RolloutLimit
from tranche.kubernetes.rollout.rollout import Rollout
from tranche.node.host import Host
from tranche.planning.steps.plan import Plan, apply

LAYOUTS = "tranche-layouts"
NAMESPACE = "tranche-system"
DAEMON_SET = "tranche-agent"
CUT_SECONDS = 3.0
"""How long a change takes here: about what eight A100 take for 56 slices, operands not counted."""


class Counts:
    """Requests by verb and kind of object; `watches` are those that are open now."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.by_second: Counter[int] = Counter()
        self.failed = 0
        self.watches = 0

    def add(self, verb: str, path: str) -> None:
        """Count one."""
        words = path.split("/")[3 if path.startswith("/api/") else 4 :]
        kind = words[2::2] if words[0] == "namespaces" else words[::2]
        self.requests[f"{verb} {'/'.join(kind)}"] += 1
        self.by_second[int(time.monotonic())] += 1


class CountingConnection(ApiConnection):
    """Counts what is asked."""

    def __init__(self, server: ApiServer, counts: Counts) -> None:
        super().__init__(server)
        self._counts = counts

    async def ask(
        self,
        what: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> ApiResponse:
        """As the product's."""
        self._counts.add(method, path)
        try:
            return await super().ask(what, method, path, body, content_type=content_type, query=query)
        except Exception:
            self._counts.failed += 1
            raise

    async def follow(self, what: str, path: str, query: Mapping[str, str]) -> AsyncGenerator[Mapping[str, Any], None]:
        """As the product's."""
        self._counts.add("WATCH", path)
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

    def change(self, decide: Callable[[NodeView], Plan]) -> Plan:
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
        self._watch, self._pods = NodeWatch(api, name), PodWatch(api, name)
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
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for part in (self._watch, self._pods, self._inventory, self.manager, self._labeler):
                    group.create_task(part.run())
        finally:
            await self._connection.close()

    async def _look(self) -> NodeView:
        return self.machine.view
