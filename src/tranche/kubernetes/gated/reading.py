"""Reads the agents' reports and the choices on their nodes, with the caller's rights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tranche.core.allocation import NodeView
from tranche.core.errors import ClaimsUnavailable, UsageError
from tranche.kubernetes.api.client import ClusterReader
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.object_client import decode_lease
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.claims.vocabulary import PLACING_LABEL
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import FleetNode, FleetPod, decode_fleet_node
from tranche.kubernetes.fleet.reading import backend_in_force, read_fleet
from tranche.kubernetes.gated.lease_pools import fleet_of
from tranche.kubernetes.gated.leases import (
    CHOICES,
    ChosenShare,
    NodeGpus,
    choices_from_lease,
    gpus_from_lease,
    node_of,
    with_choices,
)
from tranche.kubernetes.telling.told_view import GPUS

_LEASES = "/apis/coordination.k8s.io/v1/leases"


@dataclass(frozen=True, slots=True)
class GateFleet:
    """What a person may read about nodes on which a controller chooses shares.

    `views` count chosen shares as given. `said` has the agents' reports, `chosen` the choices by pod uid. `unknown` has the nodes
    that cannot be read. `unread` says what the caller may not read. `last_word` is the controller's last event about the pod.
    `whole` says whether all nodes are here.
    """

    nodes: Mapping[str, FleetNode] = field(default_factory=dict)
    said: Mapping[str, NodeGpus] = field(default_factory=dict)
    views: Mapping[str, NodeView] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    last_word: str = ""
    chosen: Mapping[str, Mapping[str, ChosenShare]] = field(default_factory=dict)
    whole: bool = True

    def fleet(self) -> Fleet:
        """The same data in the form used for a cluster with claims."""
        return fleet_of(self.nodes, self.said, self.chosen, self.unknown, self.unread)


async def read_gate_fleet(connection: ApiConnection, pod: FleetPod | None = None) -> GateFleet:
    """Read with the caller's rights, including the controller's last event about `pod` if given."""
    reader = ClusterReader(connection)
    nodes = await reader.objects("nodes", "/api/v1/nodes") or ()
    leases = [
        decode_lease(raw)
        for raw in await reader.objects("leases of GPU nodes", _LEASES, labelSelector=PLACING_LABEL) or ()
    ]
    said: dict[str, NodeGpus] = {}
    chosen: dict[str, Mapping[str, ChosenShare]] = {}
    unknown: dict[str, str] = {}
    for lease in leases:
        try:
            if lease.labels.get(PLACING_LABEL) == GPUS:
                said[node_of(lease)] = gpus_from_lease(lease)
            elif lease.labels.get(PLACING_LABEL) == CHOICES:
                chosen[node_of(lease)] = choices_from_lease(lease).choices
        except UsageError as error:
            unknown[node_of(lease)] = error.message
    views = {
        name: with_choices(each.view, chosen.get(name, {}).values())
        for name, each in said.items()
        if name not in unknown
    }
    decoded = {each.name: each for each in map(decode_fleet_node, nodes)}
    word = "" if pod is None else await _last_word(reader, pod)
    return GateFleet(decoded, said, views, unknown, reader.unread, word, chosen)


async def read_any_fleet(connection: ApiConnection, namespace: str) -> Fleet:
    """The cluster's GPUs: from what nodes publish for claims, or from the agents' leases where a controller chooses.

    Raises:
        ClaimsUnavailable: the cluster has no resource claims, and no agent reports GPUs.
        KubernetesUnavailable: the API server does not answer.
    """
    try:
        found = await read_fleet(connection, namespace)
    except ClaimsUnavailable:
        found = None
    if found is not None and await backend_in_force(connection) is not AllocationBackend.GATES:
        return found  # leases may be left over from before
    told = await read_gate_fleet(connection)
    if told.said or told.unknown or (found is None and told.unread):
        return told.fleet()
    if found is None:
        raise ClaimsUnavailable(
            "this cluster assigns no shares on demand: it has no dynamic resource allocation, and no agent reports "
            "GPUs",
            hint="ask the cluster's administrator to install Tranche's chart with dra.enabled and controller.enabled; "
            "tranche doctor --cluster shows what its nodes have",
        )
    return found


async def _last_word(reader: ClusterReader, pod: FleetPod) -> str:
    events = await reader.objects(
        "events",
        f"/api/v1/namespaces/{pod.namespace}/events",
        fieldSelector=f"involvedObject.name={pod.name},reason=WaitsForShare",
    )
    return str(events[-1].get("message") or "") if events else ""
