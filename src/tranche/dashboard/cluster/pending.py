"""Waiting pods that ask for GPUs: why they wait and what would help. The words name no one hidden from the viewer. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tranche.core.allocation import NodeView
from tranche.core.request import Request
from tranche.dashboard.cluster.redaction import redacted_view
from tranche.dashboard.cluster.snapshot import apart
from tranche.dashboard.cluster.visibility import HIDDEN, NameVisibility
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS, AllocationBackend
from tranche.kubernetes.claims.node_mode import NodeMode, mode_in_force
from tranche.kubernetes.fleet.explanation import NOT_ASKED, FleetExplanation, WaitStatus
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import FleetClaim, FleetNode, FleetPod, decode_fleet_pod
from tranche.kubernetes.gated.explaining import explain_views, explain_waiting
from tranche.kubernetes.gated.leases import offered_view
from tranche.kubernetes.gated.reading import GateFleet

_NO_DEMAND = (
    "no node that you see, and that was heard just now, gives shares by demand: their mode is static or off, or they offer "
    "nothing"
)
_NEITHER = "this cluster gives no shares by demand: it has neither claims nor scheduling gates"
_UNSAID = "why it waits cannot be said; the log of this page says more"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod that has waited since `created`, RFC 3339."""

    pod: FleetPod
    created: str = ""

    @property
    def asks(self) -> bool:
        """Whether it asks for something that may be a GPU."""
        return bool(self.pod.asks_at_gate or self.pod.claims or self.pod.templates or self.pod.limits)


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod of the queue with its answer."""

    pending: PendingPod
    answer: FleetExplanation


def decode_pending_pod(raw: Mapping[str, Any]) -> PendingPod:
    """A `v1.Pod`."""
    return PendingPod(decode_fleet_pod(raw), str((raw.get("metadata") or {}).get("creationTimestamp") or ""))


def redacted_fleet(fleet: Fleet, sight: NameVisibility) -> Fleet:
    """The fleet without the names of claims in hidden namespaces."""
    if sight.everywhere:
        return fleet
    return replace(
        fleet, claims=tuple(each if sight.sees(each.namespace) else _nameless(each) for each in fleet.claims)
    )


def gate_fleet(views: Mapping[str, NodeView], nodes: Mapping[str, FleetNode], sight: NameVisibility) -> GateFleet:
    """What nodes have for shares that are chosen by demand, as the viewer may know it."""
    offered = {
        name: apart(name, partial(_offered, view, mode, sight), lambda: None)
        for name, view in views.items()
        if name in nodes and (mode := mode_in_force(nodes[name].labels)).by_claims
    }
    return GateFleet(dict(nodes), {}, {name: each for name, each in offered.items() if each is not None})


def giving(gates: GateFleet, fleet: Fleet, backend: AllocationBackend) -> GateFleet:
    """The same with only those nodes that give shares as the cluster does: with the mode's label, others do not."""
    if backend in BY_CLAIMS:
        found = {name for name, pool in fleet.pools.items() if pool.devices}
    else:
        found = {name for name, node in gates.nodes.items() if node.hands_out}
    return replace(gates, views={name: view for name, view in gates.views.items() if name in found})


def explain_pending(
    pending: PendingPod, fleet: Fleet, gates: GateFleet, backend: AllocationBackend
) -> WaitingPod | None:
    """Why it waits, in a cluster that gives shares that way; None if it wants no GPU of ours. Both are redacted."""
    pod = pending.pod
    try:
        answer = explain_waiting(pod, gates if pod.asks_at_gate else fleet, backend)
    except Exception:
        # Catch everything: the author of one pod must not take the queue from all others.
        _log.exception("why a pod waits cannot be said", extra={"pod": str(pod)})
        answer = FleetExplanation(pod.name, WaitStatus.WAITING, _UNSAID, ())
    return None if answer.status is WaitStatus.NO_GPU else WaitingPod(pending, answer)


def explain_request(request: Request, gates: GateFleet, backend: AllocationBackend) -> FleetExplanation:
    """What a request would get now, as a pod without tolerations, made as the cluster gives shares now."""
    pod = FleetPod("", "a pod", gated=True, by_gate=request)
    if backend is AllocationBackend.NONE:
        return FleetExplanation(pod.name, WaitStatus.IMPOSSIBLE, _NEITHER, (str(request),))
    wanted = (str(request),)
    if gates.views:
        giving = replace(gates, nodes={name: node for name, node in gates.nodes.items() if name in gates.views})
        return replace(explain_views(pod, request, giving), pod=pod.name, wanted=wanted)
    if gates.whole:
        return FleetExplanation(pod.name, WaitStatus.IMPOSSIBLE, _NO_DEMAND, wanted)
    return FleetExplanation(pod.name, WaitStatus.WAITING, f"{_NO_DEMAND}; {NOT_ASKED}", wanted)


def in_order(pods: Sequence[PendingPod]) -> list[PendingPod]:
    """The pods, oldest first."""
    return sorted(pods, key=lambda each: (each.created, str(each.pod)))


def _offered(view: NodeView, mode: NodeMode, sight: NameVisibility) -> NodeView | None:
    return offered_view(redacted_view(view, sight), mode)


def _nameless(claim: FleetClaim) -> FleetClaim:
    return replace(claim, namespace=HIDDEN, name="a claim", asked="", pods=())
