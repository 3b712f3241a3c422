"""The cluster as the controller last saw it, and what follows for waiting pods: pure.

A choice counts as given from the moment it is written, even before the node's agent has heard of it. A node without a readable
report is unknown, and nothing is free there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.gated.leases import ChoiceLease, ChosenShare, NodeGpus, with_choices
from tranche.kubernetes.gated.scheduler.cluster_pods import HOST_LABEL, ClusterPod
from tranche.kubernetes.gated.scheduler.placer import GpuNode, SpreadState


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Pods by uid; nodes, their agents' reports and their choices by node name.

    `unreadable` says why a node's leases cannot be read, by node name.
    """

    pods: Mapping[str, ClusterPod] = field(default_factory=dict)
    nodes: Mapping[str, FleetNode] = field(default_factory=dict)
    gpus: Mapping[str, NodeGpus] = field(default_factory=dict)
    choices: Mapping[str, ChoiceLease] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def choice_of(self, pod: ClusterPod) -> tuple[str, ChosenShare] | None:
        """The node and the choice for a pod; None without one. Of two choices, the one on the pod's own host."""
        found = [
            (node, each.choices[pod.uid]) for node, each in sorted(self.choices.items()) if pod.uid in each.choices
        ]
        on_host = [each for each in found if pod.pinned and self.host(each[0]) == pod.pinned]
        return next(iter(on_host or found), None)

    def host(self, node: str) -> str:
        """The node's host name, as selectors use it."""
        return self.nodes[node].labels.get(HOST_LABEL, node) if node in self.nodes else node


def gpu_nodes(now: ClusterState, away: Iterable[str] = ()) -> tuple[tuple[GpuNode, ...], Mapping[str, str]]:
    """The nodes to choose from, and why other nodes with GPUs are unknown. `away` is left out."""
    used = _used(now)
    found: list[GpuNode] = []
    unknown = dict(now.unreadable)
    for name, said in sorted(now.gpus.items()):
        node = now.nodes.get(name)
        if node is None or name in unknown or name in away:
            continue
        free = {each: amount - used.get(name, {}).get(each, 0) for each, amount in node.allocatable.items()}
        chosen = now.choices.get(name)
        view = said.view if chosen is None else with_choices(said.view, chosen.choices.values())
        found.append(GpuNode(replace(node, allocatable=free), view))
    return tuple(found), unknown


def _used(now: ClusterState) -> Mapping[str, Mapping[str, int]]:
    """What pods take of each node's resources, where they are or are about to be."""
    found: dict[str, dict[str, int]] = {}
    for pod in now.pods.values():
        node = pod.node
        if not node and pod.asks and (chosen := now.choice_of(pod)) is not None:
            node = chosen[0]
        if not node or pod.finished:
            continue
        sums = found.setdefault(node, {})
        for resource, amount in pod.needs.items():
            sums[resource] = sums.get(resource, 0) + amount
    return found


def spread_of(now: ClusterState) -> SpreadState:
    """Where the cluster's pods are, or are about to be."""
    pods = []
    for pod in now.pods.values():
        chosen = now.choice_of(pod) if pod.asks and not pod.node else None
        node = pod.node or (chosen[0] if chosen is not None else "")
        if node and not (pod.finished or pod.ending):
            pods.append(replace(pod, node=node))
    return SpreadState(tuple(now.nodes.values()), tuple(pods))
