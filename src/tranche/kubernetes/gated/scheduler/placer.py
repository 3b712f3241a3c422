"""Chooses a node and a share for each gated pod: the planning of one machine, over the state of all. Pure.

For clusters whose scheduler does not know claims. A pod waits at a scheduling gate until a share is chosen for it. One patch
then writes the choice on the pod, binds it to the node by a selector and removes the gate. An event says why a pod keeps
waiting.
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
from tranche.kubernetes.claims.vocabulary import SHARE_GATE
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.gated.chosen_view import CHOSEN
from tranche.kubernetes.gated.leases import ChosenShare
from tranche.kubernetes.gated.scheduler.node_fit import PlacingRequirement, why_not
from tranche.kubernetes.gated.scheduler.spread import SpreadPod, SpreadRequirement, SpreadState
from tranche.planning.decide.allocate import ChosenMachine, Granted, decide_across
from tranche.planning.decide.foresee import with_granted

HOST_LABEL = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class GatedPod:
    """A pod that waits for a share. `created` sorts by time."""

    namespace: str
    name: str
    uid: str
    request: Request
    rules: PlacingRequirement = field(default_factory=PlacingRequirement)
    priority: int = 0
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    spread: tuple[SpreadRequirement, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node: its remaining resources, and its GPUs with everything promised on them."""

    room: FleetNode
    view: NodeView


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """A pod's node and what the pod gets there."""

    pod: GatedPod
    node: str
    granted: Granted


@dataclass(frozen=True, slots=True)
class UnplacedPod:
    """A pod that keeps waiting, and each node's obstacle. If `possible` is False, no node could ever serve it."""

    pod: GatedPod
    reasons: Mapping[str, str]
    possible: bool


def place(
    pods: Iterable[GatedPod],
    nodes: Iterable[GpuNode],
    *,
    unknown: Mapping[str, str] | None = None,
    avoided: Mapping[str, frozenset[str]] | None = None,
    spread: SpreadState | None = None,
) -> tuple[PodPlacement | UnplacedPod, ...]:
    """Place each pod, highest priority first, then oldest first.

    `unknown` says why further nodes can give nothing now. `avoided` has the nodes that refused a pod, by pod uid. `spread` is the
    whole cluster, for pods with topology spread.
    Each pod is placed as if the pods before it were already there, so no share and no room is chosen twice. A waiting pod keeps
    nothing free: smaller pods behind it go ahead.
    """
    known = {node.room.name: node for node in nodes}
    kinds = spread or SpreadState(tuple(node.room for node in known.values()))
    found: list[PodPlacement | UnplacedPod] = []
    for pod in sorted(pods, key=lambda each: (-each.priority, each.created, each.namespace, each.name)):
        away = {name: reason for name, node in known.items() if (reason := why_not(pod.rules, node.room))}
        if pod.spread:
            kind = SpreadPod(pod.namespace, pod.labels)
            uneven = kinds.reasons(kind, pod.spread, pod.rules, (node.room for node in known.values()))
            away = {**uneven, **away}
        away |= dict.fromkeys((avoided or {}).get(pod.uid, frozenset()) & known.keys(), "refused the pod a moment ago")
        near = {name: node.view for name, node in known.items() if name not in away}
        chosen = decide_across(near, pod.request)
        if not isinstance(chosen, ChosenMachine):
            # A node that the pod's other rules exclude now may serve it one day, although its GPUs were not asked.
            possible = chosen.possible or any(_could_serve(known[name].view, pod.request) for name in away)
            reasons = (
                {name: f"the node {why}" for name, why in away.items()} | dict(unknown or {}) | dict(chosen.reasons)
            )
            found.append(UnplacedPod(pod, reasons, possible or bool(unknown)))
            continue
        found.append(PodPlacement(pod, chosen.name, chosen.granted))
        known[chosen.name] = _with(known[chosen.name], pod, chosen.granted)
        kinds = kinds.with_pod(SpreadPod(pod.namespace, pod.labels, chosen.name))
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


def _with(node: GpuNode, pod: GatedPod, granted: Granted) -> GpuNode:
    """The node with the pod on it."""
    left = {resource: amount - pod.rules.needs.get(resource, 0) for resource, amount in node.room.allocatable.items()}
    return GpuNode(replace(node.room, allocatable=left), with_granted(node.view, pod.request, granted))


def _could_serve(view: NodeView, request: Request) -> bool:
    found = decide_across({"": view}, request)
    return isinstance(found, ChosenMachine) or found.possible


_MOST_NODES = 6
_LONGEST_REASON = 160
_CHOSEN = re.compile(rf"\b{CHOSEN}[0-9a-zA-Z-]+")


def waiting_text(found: UnplacedPod) -> str:
    """`no node can give --gpu-memory 4Gi now: ...`, with nodes grouped by reason."""
    groups: dict[str, list[str]] = {}
    for node, reason in sorted(found.reasons.items()):
        groups.setdefault(_CHOSEN.sub("another pod, for which it is chosen", reason), []).append(node)
    if not groups:
        return f"{found.pod.request} waits: no agent reports GPUs for gated pods"
    now = "now" if found.possible else "in its present setup"
    largest = sorted(groups.items(), key=lambda each: (-len(each[1]), each[1]))
    texts = [f"{_names(nodes)}: {shortened(reason, _LONGEST_REASON)}" for reason, nodes in largest[:_MOST_NODES]]
    left_out = sum(len(nodes) for _, nodes in largest[_MOST_NODES:])
    more = f"; and {left_out} more nodes" if left_out else ""
    return f"no node can give {found.pod.request} {now}: {'; '.join(texts)}{more}"


def _names(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"
