"""Follows the cluster's pods and nodes, and the two leases of each GPU node, for choosing shares."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from tranche.core.errors import UsageError
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.informer import ObjectSource
from tranche.kubernetes.api.object_client import Lease, LeaseClient
from tranche.kubernetes.claims.vocabulary import PLACING_LABEL
from tranche.kubernetes.fleet.objects import FleetNode, decode_fleet_node
from tranche.kubernetes.gated.leases import (
    CHOICES,
    ChoiceLease,
    NodeGpus,
    choices_from_lease,
    gpus_from_lease,
    node_of,
)
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod, decode_cluster_pod
from tranche.kubernetes.gated.scheduler.placer import ClusterState
from tranche.kubernetes.rollout.ticket import version_number
from tranche.kubernetes.telling.told_view import GPUS, generation_of, lease_name


class ClusterWatch:
    """The cluster as last seen. `namespace` has the agents' leases."""

    def __init__(self, connection: ApiConnection, namespace: str) -> None:
        self.changed = asyncio.Event()
        self._connection = connection
        self._leases = LeaseClient(connection, namespace)
        self._pods: Mapping[str, ClusterPod] | None = None
        self._nodes: Mapping[str, FleetNode] | None = None
        self._gpus: Mapping[str, Lease] | None = None
        self._choices: Mapping[str, Lease] | None = None
        self._own: dict[str, Lease] = {}
        self._read: dict[tuple[str, str], NodeGpus | str] = {}

    @property
    def synced(self) -> bool:
        """Whether everything was received at least once."""
        return None not in (self._pods, self._nodes, self._gpus, self._choices)

    async def run(self) -> None:
        """Follow until cancelled."""
        self._pods = self._nodes = self._gpus = self._choices = None
        pods = ObjectSource(self._connection, "pods", "/api/v1/pods", {}, decode_cluster_pod)
        nodes = ObjectSource(self._connection, "nodes", "/api/v1/nodes", {}, decode_fleet_node)
        async with asyncio.TaskGroup() as group:
            group.create_task(pods.tell(self._heard_pods))
            group.create_task(nodes.tell(self._heard_nodes))
            for kind, hear in ((GPUS, self._heard_gpus), (CHOICES, self._heard_choices)):
                leases = self._leases.source(f"leases of {kind}", {"labelSelector": f"{PLACING_LABEL}={kind}"})
                group.create_task(leases.tell(hear))

    def wrote(self, chosen: ChoiceLease) -> None:
        """Note a lease that was just written; the watch may report it later."""
        if chosen.lease is not None:
            self._own[chosen.lease.name] = chosen.lease

    def forget(self, nodes: Iterable[str]) -> None:
        """Forget what was written for these nodes, since another version won: believe the watch instead."""
        for node in nodes:
            self._own.pop(lease_name(CHOICES, node), None)

    def now(self) -> ClusterState:
        """The cluster now; call it only once `synced`. Nodes that cannot be read are unknown."""
        unreadable: dict[str, str] = {}
        gpus, choices = {}, {}
        for lease in (self._gpus or {}).values():
            found = self._gpus_of(lease)
            if isinstance(found, str):
                unreadable[node_of(lease)] = found
            else:
                gpus[found.node] = found
        for name in {*(self._choices or {}), *self._own}:
            heard = (self._choices or {}).get(name)
            latest = max((each for each in (heard, self._own.get(name)) if each is not None), key=version_number)
            try:
                chosen = choices_from_lease(latest)
                choices[chosen.node] = chosen
            except UsageError as error:
                unreadable[node_of(latest)] = error.message
        return ClusterState(self._pods or {}, self._nodes or {}, gpus, choices, unreadable)

    def _gpus_of(self, lease: Lease) -> NodeGpus | str:
        """The lease's GPUs, or why they cannot be read. Unpacks each version once."""
        key = (lease.name, lease.version)
        if key not in self._read:
            self._read = {known: found for known, found in self._read.items() if known[0] != lease.name}
            try:
                self._read[key] = gpus_from_lease(lease)
            except UsageError as error:
                self._read[key] = error.message
        return self._read[key]

    def _heard_pods(self, found: Iterable[ClusterPod]) -> None:
        self._pods = {pod.uid: pod for pod in found}
        self.changed.set()

    def _heard_nodes(self, found: Iterable[FleetNode]) -> None:
        self._nodes = {node.name: node for node in found}
        self.changed.set()

    def _heard_gpus(self, found: Iterable[Lease]) -> None:
        before, self._gpus = self._gpus, {lease.name: lease for lease in found}
        # A mere renewal changes no choice, and the placer looks at intervals anyway.
        if before is None or _generations(before) != _generations(self._gpus):
            self.changed.set()

    def _heard_choices(self, found: Iterable[Lease]) -> None:
        self._choices = {lease.name: lease for lease in found}
        shown = {name: version_number(lease) for name, lease in self._choices.items()}
        self._own = {name: own for name, own in self._own.items() if version_number(own) > shown.get(name, 0)}
        self.changed.set()


def _generations(leases: Mapping[str, Lease]) -> Mapping[str, int]:
    return {name: generation_of(lease) for name, lease in leases.items()}
