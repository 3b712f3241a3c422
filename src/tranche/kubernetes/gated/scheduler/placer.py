"""Which node a gated pod goes to, and which share it gets there: the planning of one machine, over the state of all. Pure.

For clusters whose scheduler knows nothing of claims. A pod waits at a scheduling gate until a share is chosen for it; the
choice is written on it, it is bound to the node by a selector, and the gate goes, in one patch. A pod that goes on waiting is
told why in one line of its events.
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
from tranche.kubernetes.gated.chosen_view import CHOSEN
from tranche.kubernetes.gated.leases import ChosenShare
from tranche.kubernetes.gated.scheduler.node_fit import NodeCapacity, PlacingRequirement, why_not
from tranche.kubernetes.gated.scheduler.spread import SpreadPod, SpreadRequirement, SpreadState
from tranche.planning.decide.across import ChosenMachine, decide_across
from tranche.planning.decide.allocate import Granted
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
    """A node and its GPUs, with all that was promised on them."""

    room: NodeCapacity
    view: NodeView


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """A pod's node, and what it gets there."""

    pod: GatedPod
    node: str
    granted: Granted


@dataclass(frozen=True, slots=True)
class UnplacedPod:
    """A pod that goes on waiting, and what is in the way on each node. Where `possible` is False no node could ever serve it."""

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
    """What becomes of each pod, those of the highest priority first and among equals the oldest.

    `unknown` says of more nodes why nothing can be had of them now; `avoided` are nodes that have refused a pod, by its uid.
    `spread` is the whole cluster, for pods that are to be spread over it.
    Each is placed as if those before it were there already, so no share and no room is chosen twice. A pod that has to wait keeps
    nothing free: smaller ones behind it go ahead.
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
        away |= dict.fromkeys((avoided or {}).get(pod.uid, frozenset()) & known.keys(), "has refused the pod just now")
        near = {name: node.view for name, node in known.items() if name not in away}
        chosen = decide_across(near, pod.request)
        if not isinstance(chosen, ChosenMachine):
            # A node that would do for the pod's other rules may serve it one day, even if its GPUs never were asked.
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
    """The JSON patch that writes the choice on the pod, binds it to its node and takes the gate away; `host` is what a selector
    names the node by.

    It fails as a whole where the pod is another one by now, or has no such gate.
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
    """The choice as it is written on the pod, for people: the node, and what the pod gets of its GPUs."""
    grants = [grant_to_dict(each) for each in choice.grants]
    return json.dumps({"node": node, "grants": grants}, sort_keys=True, separators=(",", ":"))


def _entry(path: str, there: Json | None, key: str, value: str) -> dict[str, Any]:
    if not there:
        return {"op": "add", "path": path, "value": {key: value}}
    return {"op": "add", "path": f"{path}/{key.replace('~', '~0').replace('/', '~1')}", "value": value}


def _with(node: GpuNode, pod: GatedPod, granted: Granted) -> GpuNode:
    """The node as it is with the pod on it."""
    left = {resource: amount - pod.rules.needs.get(resource, 0) for resource, amount in node.room.free.items()}
    return GpuNode(replace(node.room, free=left), with_granted(node.view, pod.request, granted))


def _could_serve(view: NodeView, request: Request) -> bool:
    found = decide_across({"": view}, request)
    return isinstance(found, ChosenMachine) or found.possible


_MOST_NODES = 6
_LONGEST_REASON = 160
_CHOSEN = re.compile(rf"\b{CHOSEN}[0-9a-zA-Z-]+")


def waiting_text(found: UnplacedPod) -> str:
    """`no node can give --gpu-memory 4Gi now: ...`, nodes with one reason together."""
    groups: dict[str, list[str]] = {}
    for node, reason in sorted(found.reasons.items()):
        groups.setdefault(_CHOSEN.sub("a pod that it was chosen for", reason), []).append(node)
    if not groups:
        return f"{found.pod.request} waits: no node has told of GPUs whose shares are chosen by demand"
    now = "now" if found.possible else "as they are"
    largest = sorted(groups.items(), key=lambda each: (-len(each[1]), each[1]))
    texts = [f"{_names(nodes)}: {shortened(reason, _LONGEST_REASON)}" for reason, nodes in largest[:_MOST_NODES]]
    left_out = sum(len(nodes) for _, nodes in largest[_MOST_NODES:])
    more = f"; and {left_out} more nodes" if left_out else ""
    return f"no node can give {found.pod.request} {now}: {'; '.join(texts)}{more}"


def _names(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"
