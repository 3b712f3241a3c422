"""Waiting pods that ask for GPUs, why they wait and what would help; and the pages of the queue and of the events of a cluster.

The words name no one hidden from the viewer. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tranche.core.allocation import NodeView
from tranche.core.request import Request
from tranche.dashboard.cluster.kube_event import KubeEvent
from tranche.dashboard.cluster.redaction import redacted_view
from tranche.dashboard.cluster.snapshot import HIDDEN, NameVisibility, apart
from tranche.dashboard.events_page import EventFilter
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.parts import code, moment, node_link, notes, span_since, table
from tranche.dashboard.queue_page import with_ask_form
from tranche.documents.markup import Child, Element, element
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS, AllocationBackend
from tranche.kubernetes.claims.node_mode import NodeMode, mode_in_force
from tranche.kubernetes.fleet.explanation import (
    GROUP_COLUMNS,
    NOT_ASKED,
    FleetExplanation,
    WaitStatus,
    group_row,
    tail_lines,
)
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import FleetClaim, FleetNode, FleetPod
from tranche.kubernetes.gated.explaining import explain_views, explain_waiting
from tranche.kubernetes.gated.leases import offered_view
from tranche.kubernetes.gated.reading import GateFleet

_NO_DEMAND = (
    "no node that you can see and that reported recently assigns shares on demand: the nodes' mode is static or off, "
    "or they offer nothing"
)
_NEITHER = "this cluster assigns no shares on demand: it has neither claims nor scheduling gates"
_UNSAID = "the reason is unknown; see this page's log"

_log = logging.getLogger(__name__)
_VOUCHED = (
    "Users who may write events in a namespace can write any event about its objects, and in the namespace default, "
    "any event about nodes: Kubernetes does not authenticate an event's author."
)


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
    pod: FleetPod, fleet: Fleet, gates: GateFleet, backend: AllocationBackend
) -> FleetExplanation | None:
    """Why it waits, in a cluster that gives shares that way; None if it wants no GPU of ours. Both are redacted."""
    try:
        answer = explain_waiting(pod, gates if pod.asks_at_gate else fleet, backend)
    except Exception:
        # Catch everything: the author of one pod must not take the queue from all others.
        _log.exception("cannot explain why a pod waits", extra={"pod": str(pod)})
        answer = FleetExplanation(pod.name, WaitStatus.WAITING, _UNSAID, ())
    return None if answer.status is WaitStatus.NO_GPU else answer


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


def in_order(pods: Sequence[FleetPod]) -> list[FleetPod]:
    """The pods, oldest first."""
    return sorted(pods, key=lambda each: (each.created, str(each)))


def _offered(view: NodeView, mode: NodeMode, sight: NameVisibility) -> NodeView | None:
    return offered_view(redacted_view(view, sight), mode)


def _nameless(claim: FleetClaim) -> FleetClaim:
    return replace(claim, namespace=HIDDEN, name="a claim", asked="", pods=())


def cluster_queue_page(
    waiting: Sequence[tuple[FleetPod, FleetExplanation]], hidden: int, unasked: int, said: Sequence[str], now: float
) -> DashboardPage:
    """Waiting pods with why, first come first; `hidden` counts those of hidden namespaces, `unasked` those not explained."""
    rows = [_row(*each, now) for each in waiting]
    more = []
    if hidden:
        more.append(f"{hidden:,} more {'pods wait' if hidden > 1 else 'pod waits'} in other namespaces.")
    if unasked:
        more.append(
            f"{unasked:,} later {'pods wait' if unasked > 1 else 'pod waits'} too; 'tranche explain pod/NAME' shows why."
        )
    columns = ("Pod", "Waits", "Asks for", "For", "Why", "What would help")
    live = element(
        "div",
        notes(said),
        table("Pods that wait for GPUs, oldest first", columns, rows, "No pod that you can see waits for GPUs."),
        [element("p", each) for each in more],
    )
    return with_ask_form(live)


def answered(answer: FleetExplanation) -> Iterator[Child]:
    """What a request would get."""
    yield element("p", element("strong", str(answer.status)), f": {answer.message}")
    if (groups := _groups(answer, "nodes")) is not None:
        yield groups
    yield from (element("p", line) for line in tail_lines(answer) if line)


def cluster_events_page(
    events: Sequence[KubeEvent], said: Sequence[str], all_nodes: bool, query: Mapping[str, str]
) -> DashboardPage:
    """The events of agents, controller and this page, filtered by `query`."""
    choice = EventFilter.asked(query)
    found = [each for each in events if choice.takes(each.reason, f"{each.reason} {_told(each)} {each.message}")]
    found = found[::-1] if choice.oldest else found
    rows = [
        (
            moment(each.last) if each.last else None,
            code(each.reason),
            _about(each),
            each.message,
            "warning" if each.warning else "",
            str(each.count) if each.count > 1 else "",
        )
        for each in found
    ]
    hint = "" if all_nodes else "Only users who may list the pods of all namespaces see events about nodes."
    live = element(
        "div",
        notes(said),
        element("p", f"{_VOUCHED} {hint}".strip(), class_="muted"),
        element("p", choice.said(len(found), len(events))) if choice.leaves_out else None,
        table(choice.caption, ("When", "What", "About", "In words", "Kind", "Times"), rows, "No events."),
    )
    return DashboardPage("Events", live, choice.form({each.reason for each in events}))


def _row(pod: FleetPod, answer: FleetExplanation, now: float) -> Sequence[Child | None]:
    return (
        code(str(pod)),
        str(answer.status),
        "; ".join(answer.wanted),
        span_since(pod.created, now) if pod.created else None,
        element("div", element("p", answer.message), _groups(answer, f"nodes-{pod.namespace}-{pod.name}")),
        element("ol", [element("li", one) for one in answer.remedies]) if answer.remedies else None,
    )


def _groups(answer: FleetExplanation, id: str) -> Element | None:
    if not answer.groups:
        return None
    names = tuple(each.capitalize() for each in GROUP_COLUMNS)
    rows = [tuple(str(cell) for cell in group_row(each)) for each in answer.groups]
    shown = table(f"Reasons by node for {answer.pod}", names, rows, "No node.")
    return element("details", element("summary", "Reasons by node"), shown, id=id)


def _about(event: KubeEvent) -> Child:
    if event.kind == "Node":
        return node_link(event.name)
    return _told(event)


def _told(event: KubeEvent) -> str:
    return " ".join(filter(None, (event.kind.lower(), "/".join(filter(None, (event.namespace, event.name))))))
