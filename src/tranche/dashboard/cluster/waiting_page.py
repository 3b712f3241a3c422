"""The queue of a cluster and its events, as pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tranche.dashboard.cluster.kube_event import KubeEvent
from tranche.dashboard.cluster.pending import WaitingPod
from tranche.dashboard.events_page import EventFilter
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.parts import code, moment, node_link, notes, span_since, table
from tranche.dashboard.queue_page import with_ask_form
from tranche.documents.markup import Child, Element, element
from tranche.kubernetes.fleet.explanation import GROUP_COLUMNS, FleetExplanation, group_row, tail_lines

_VOUCHED = (
    "Whoever may write events in a namespace can write any about what is in it, and in default any about nodes: Kubernetes "
    "does not say whose an event is."
)


def cluster_queue_page(
    waiting: Sequence[WaitingPod], hidden: int, unasked: int, said: Sequence[str], now: float
) -> DashboardPage:
    """Waiting pods, first come first; `hidden` counts those of hidden namespaces, `unasked` those too many to explain."""
    rows = [_row(each, now) for each in waiting]
    more = []
    if hidden:
        more.append(f"{hidden:,} more wait in other namespaces.")
    if unasked:
        more.append(f"{unasked:,} more wait that came later; 'tranche explain pod/NAME' says why each does.")
    columns = ("Pod", "Waits", "Asks for", "For", "Why", "What would help")
    live = element(
        "div",
        notes(said),
        table("Pods that wait for GPUs, first come first", columns, rows, "No pod that you may see waits for GPUs."),
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
    hint = "" if all_nodes else "Events about nodes are for those who may list the pods of all namespaces."
    live = element(
        "div",
        notes(said),
        element("p", f"{_VOUCHED} {hint}".strip(), class_="muted"),
        element("p", choice.said(len(found), len(events))) if choice.leaves_out else None,
        table(choice.caption, ("When", "What", "About", "In words", "Kind", "Times"), rows, "No events."),
    )
    return DashboardPage("Events", live, choice.form({each.reason for each in events}))


def _row(each: WaitingPod, now: float) -> Sequence[Child | None]:
    answer, pod = each.answer, each.pending.pod
    return (
        code(str(pod)),
        str(answer.status),
        "; ".join(answer.wanted),
        span_since(each.pending.created, now) if each.pending.created else None,
        element("div", element("p", answer.message), _groups(answer, f"nodes-{pod.namespace}-{pod.name}")),
        element("ol", [element("li", one) for one in answer.remedies]) if answer.remedies else None,
    )


def _groups(answer: FleetExplanation, id: str) -> Element | None:
    if not answer.groups:
        return None
    names = tuple(each.capitalize() for each in GROUP_COLUMNS)
    rows = [tuple(str(cell) for cell in group_row(each)) for each in answer.groups]
    shown = table(f"What nodes say to {answer.pod}", names, rows, "No node.")
    return element("details", element("summary", "What nodes say"), shown, id=id)


def _about(event: KubeEvent) -> Child:
    if event.kind == "Node":
        return node_link(event.name)
    return _told(event)


def _told(event: KubeEvent) -> str:
    return " ".join(filter(None, (event.kind.lower(), "/".join(filter(None, (event.namespace, event.name))))))
