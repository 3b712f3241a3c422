"""Chooses a node and a share for each gated pod: the planning of one machine, over the state of all. Pure.

For clusters whose scheduler does not know claims. A pod waits at a scheduling gate until a share is chosen for it. One patch
then writes the choice on the pod, binds it to the node by a selector and removes the gate. An event says why a pod keeps
waiting.

A choice counts as given from the moment it is written, even before the node's agent has heard of it. A node without a readable
report is unknown, and nothing is free there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tranche.core.allocation import NodeView
from tranche.core.printable import shortened
from tranche.core.request import Request
from tranche.core.wire import grant_to_dict
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.node_rules import Taint, meets, unmet, untolerated
from tranche.kubernetes.claims.vocabulary import SHARE_GATE
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.gated.leases import CHOSEN, ChoiceLease, ChosenShare, NodeGpus, with_choices
from tranche.kubernetes.gated.scheduler.cluster_pods import HOST_LABEL, ClusterPod, SpreadRequirement
from tranche.planning.decide.allocate import ChosenMachine, Granted, decide_across
from tranche.planning.decide.foresee import with_granted


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node: its remaining resources, and its GPUs with everything promised on them."""

    room: FleetNode
    view: NodeView


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """A pod's node and what the pod gets there."""

    pod: ClusterPod
    node: str
    granted: Granted


@dataclass(frozen=True, slots=True)
class UnplacedPod:
    """A pod that keeps waiting, and each node's obstacle. If `possible` is False, no node could ever serve it."""

    pod: ClusterPod
    reasons: Mapping[str, str]
    possible: bool


def place(
    pods: Iterable[ClusterPod],
    nodes: Iterable[GpuNode],
    *,
    unknown: Mapping[str, str] | None = None,
    avoided: Mapping[str, frozenset[str]] | None = None,
    spread: SpreadState | None = None,
) -> tuple[PodPlacement | UnplacedPod, ...]:
    """Choose for each pod that waits for a share, highest priority first, then oldest first.

    `unknown` says why further nodes can give nothing now. `avoided` has the nodes that refused a pod, by pod uid. `spread` is the
    whole cluster, for pods with topology spread.
    Each pod is placed as if the pods before it were already there, so no share and no room is chosen twice. A waiting pod keeps
    nothing free: smaller pods behind it go ahead.
    """
    known = {node.room.name: node for node in nodes}
    kinds = spread or SpreadState(tuple(node.room for node in known.values()))
    found: list[PodPlacement | UnplacedPod] = []
    for pod in sorted(pods, key=lambda each: (-each.priority, each.created, each.namespace, each.name)):
        if (request := pod.request) is None:
            continue
        away = {name: reason for name, node in known.items() if (reason := why_not(pod, node.room))}
        if pod.spread:
            away = {**kinds.reasons(pod, (node.room for node in known.values())), **away}
        away |= dict.fromkeys((avoided or {}).get(pod.uid, frozenset()) & known.keys(), "refused the pod a moment ago")
        near = {name: node.view for name, node in known.items() if name not in away}
        chosen = decide_across(near, request)
        if not isinstance(chosen, ChosenMachine):
            # A node that the pod's other rules exclude now may serve it one day, although its GPUs were not asked.
            possible = chosen.possible or any(_could_serve(known[name].view, request) for name in away)
            reasons = (
                {name: f"the node {why}" for name, why in away.items()} | dict(unknown or {}) | dict(chosen.reasons)
            )
            found.append(UnplacedPod(pod, reasons, possible or bool(unknown)))
            continue
        found.append(PodPlacement(pod, chosen.name, chosen.granted))
        known[chosen.name] = _with(known[chosen.name], pod, request, chosen.granted)
        kinds = replace(kinds, pods=(*kinds.pods, replace(pod, node=chosen.name)))
    return tuple(found)


def ungating(raw_pod: Json, node: str, host: str, choice: ChosenShare) -> list[dict[str, Any]]:
    """The JSON patch that writes the choice on the pod, binds it to its node and removes the gate. `host` is the node's name for
    selectors.

    The whole patch fails if the pod was replaced or has no such gate.
    """
    spec = raw_pod.get("spec") or {}
    gates = [each.get("name") for each in spec.get("schedulingGates") or ()]
    position = gates.index(SHARE_GATE)
    selector = spec.get("nodeSelector")
    annotations = (raw_pod.get("metadata") or {}).get("annotations")
    return [
        {"op": "test", "path": "/metadata/uid", "value": choice.uid},
        {"op": "test", "path": f"/spec/schedulingGates/{position}", "value": {"name": SHARE_GATE}},
        _entry("/metadata/annotations", annotations, SHARE_GATE, choice_text(node, choice)),
        _entry("/spec/nodeSelector", selector, HOST_LABEL, host),
        {"op": "remove", "path": f"/spec/schedulingGates/{position}"},
    ]


def choice_text(node: str, choice: ChosenShare) -> str:
    """The choice as written on the pod, for people: the node and the grants."""
    grants = [grant_to_dict(each) for each in choice.grants]
    return json.dumps({"node": node, "grants": grants}, sort_keys=True, separators=(",", ":"))


def _entry(path: str, there: Json | None, key: str, value: str) -> dict[str, Any]:
    if not there:
        return {"op": "add", "path": path, "value": {key: value}}
    return {"op": "add", "path": f"{path}/{key.replace('~', '~0').replace('/', '~1')}", "value": value}


def _with(node: GpuNode, pod: ClusterPod, request: Request, granted: Granted) -> GpuNode:
    """The node with the pod on it."""
    left = {resource: amount - pod.needs.get(resource, 0) for resource, amount in node.room.allocatable.items()}
    return GpuNode(replace(node.room, allocatable=left), with_granted(node.view, request, granted))


def _could_serve(view: NodeView, request: Request) -> bool:
    found = decide_across({"": view}, request)
    return isinstance(found, ChosenMachine) or found.possible


_MOST_NODES = 6
_LONGEST_REASON = 160
_CHOSEN = re.compile(rf"\b{CHOSEN}[0-9a-zA-Z-]+")


def waiting_text(found: UnplacedPod) -> str:
    """`no node can serve --gpu-memory 4Gi now: ...`, with nodes grouped by reason."""
    groups: dict[str, list[str]] = {}
    for node, reason in sorted(found.reasons.items()):
        groups.setdefault(_CHOSEN.sub("another pod that it was chosen for", reason), []).append(node)
    if not groups:
        return f"{found.pod.request} waits: no agent reports GPUs for gated pods"
    now = "now" if found.possible else "in its current setup"
    largest = sorted(groups.items(), key=lambda each: (-len(each[1]), each[1]))
    texts = [f"{_names(nodes)}: {shortened(reason, _LONGEST_REASON)}" for reason, nodes in largest[:_MOST_NODES]]
    left_out = sum(len(nodes) for _, nodes in largest[_MOST_NODES:])
    more = f"; and {left_out} more nodes" if left_out else ""
    return f"no node can serve {found.pod.request} {now}: {'; '.join(texts)}{more}"


def _names(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"


UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


def why_not(pod: ClusterPod, node: FleetNode) -> str:
    """Why the pod cannot run on the node by the scheduler's rules, in words that complete `the node ...`; "" when it can.

    Only the scheduler knows affinity between pods.
    """
    if not node.ready:
        return "is not ready"
    cordon = (Taint(UNSCHEDULABLE, "NoSchedule"),) if node.unschedulable else ()
    if taints := untolerated((*node.taints, *cordon), pod.tolerations):
        return f"has the taint {taints[0].key}, which the pod does not tolerate"
    if why := _why_not_by_labels(pod, node):
        return why
    for resource, amount in pod.needs.items():
        if amount > node.allocatable.get(resource, 0):
            return f"has too little {resource}"
    return ""


def _why_not_by_labels(pod: ClusterPod, node: FleetNode) -> str:
    """The same, by the pod's node selector and node affinity only."""
    if lacking := unmet(pod.node_selector, node.labels):
        return f"lacks the label {lacking[0]} of the pod's nodeSelector"
    return "" if meets(pod.terms, node.name, node.labels) else "does not match the pod's node affinity"


@dataclass(frozen=True, slots=True)
class SpreadState:
    """Topology spread: all nodes in the cluster, and the pods that run or are about to, each with its node.

    Only constraints that must hold (`DoNotSchedule`) keep a pod from a node. As in the scheduler's default, all nodes that the
    pod's node selector and affinity allow count, even with taints.
    """

    nodes: tuple[FleetNode, ...] = ()
    pods: tuple[ClusterPod, ...] = ()

    def reasons(self, pod: ClusterPod, rooms: Iterable[FleetNode]) -> Mapping[str, str]:
        """Why the pod cannot go to some of these nodes, by name, in words that complete `the node ...`."""
        rooms, found = tuple(rooms), {}
        for rule in pod.spread:
            counts, own = self._counts(pod, rule), 1 if _meets(rule, pod.labels) else 0
            most = min(counts.values(), default=0) + rule.skew - own
            for room in rooms:
                domain = room.labels.get(rule.key)
                if domain is None:
                    found[room.name] = f"lacks the label {rule.key} of the pod's topology spread"
                elif counts.get(domain, 0) > most:
                    found[room.name] = (
                        f"has too many similar pods in {rule.key}={domain}; the pod's topology spread allows "
                        f"{rule.skew} more than elsewhere"
                    )
        return found

    def _counts(self, pod: ClusterPod, rule: SpreadRequirement) -> Mapping[str, int]:
        counted = [each for each in self.nodes if rule.key in each.labels and not _why_not_by_labels(pod, each)]
        found = dict.fromkeys((each.labels[rule.key] for each in counted), 0)
        domains = {each.name: each.labels[rule.key] for each in counted}
        for other in self.pods:
            if other.namespace == pod.namespace and other.node in domains and _meets(rule, other.labels):
                found[domains[other.node]] += 1
        return found


def _meets(rule: SpreadRequirement, labels: Mapping[str, str]) -> bool:
    return bool(rule.selector) and all(each.holds(labels) for each in rule.selector)


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
