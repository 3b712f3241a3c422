"""One node of a cluster: what is on its GPUs, who has it, and as of when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from urllib.parse import quote

from tranche.dashboard.cluster.snapshot import SeenNode, apart
from tranche.dashboard.events_page import share_page
from tranche.dashboard.fleet_page import fleet_figures, gpu_row, key, used_in_words
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.gpu_page import gpu_page
from tranche.dashboard.parts import (
    TableOrder,
    code,
    figures,
    gpu_link,
    memory,
    moment,
    node_link,
    notes,
    share_link,
    span_since,
)
from tranche.documents import describe
from tranche.documents.blocks import Document, blocks_of, holder_without_id, whose
from tranche.documents.markup import Child, Element, element
from tranche.kubernetes.telling.use_report import NO_USE, READ_SECONDS, UseReport

_NO_ORDER = TableOrder()
_LATE_SECONDS = 300.0


def node_page(
    node: SeenNode,
    said: Sequence[str],
    now: float,
    acts: Element | None = None,
    order: TableOrder = _NO_ORDER,
    use: UseReport = NO_USE,
) -> DashboardPage:
    """The node; `acts` are forms that change it."""
    used = {each["gpuUUID"]: used_in_words(each) for each in _readings(node, use, now)}
    drawn = blocks_of(node.overview["gpus"], node.overview["allocations"])
    live = element(
        "div",
        notes([*said, *not_of_now(node)]),
        figures(_facts(node)),
        fleet_figures(node.overview) if drawn else None,
        key(drawn),
        element("div", [gpu_row(gpu, used.get(gpu.uuid, "")) for gpu in drawn], class_="gpus") if drawn else None,
        _holders(node, now, order) if node.seen is not None else None,
        element("p", element("a", "What would a layout do?", href=layouts_address(node.name))) if drawn else None,
    )
    return DashboardPage(f"Node {node.name}", live, below=acts, every=round(READ_SECONDS))


def node_gpu_page(
    node: SeenNode,
    uuid: str,
    said: Sequence[str],
    now: float,
    past: Element,
    use: UseReport = NO_USE,
    order: TableOrder = _NO_ORDER,
) -> DashboardPage | None:
    """One GPU of the node; `past` is what the server has seen of it, and `use` the agent's readings."""
    readings, said = _readings(node, use, now), [*said, *not_of_now(node)]
    page = gpu_page(uuid, node.overview, readings, (), said, now, past=past, order=order)
    return None if page is None else _of_node(page, node)


def node_share_page(
    nodes: Sequence[SeenNode], allocation_id: str, now: float, act: Callable[[str, str], Element] | None = None
) -> DashboardPage | None:
    """The share of that name. Each node names its own shares: if several have one, they are listed. `act` gives the link to its
    actions.
    """
    pages = [
        (each, apart(each.name, partial(share_page, allocation_id, each.overview, (), now), lambda: None))
        for each in nodes
    ]
    found = [(node, page) for node, page in pages if page is not None]
    if not found:
        return None
    address = f"/shares/{quote(allocation_id, safe='')}"
    if len(found) > 1:
        said = "Several nodes have a share with that id:"
        return several_page(f"Share {allocation_id}", said, address, [node for node, _ in found])
    ((node, page),) = found
    live = element("div", element("p", "On node ", node_link(node.name)), notes(not_of_now(node)), page.live)
    return DashboardPage(page.title, live, below=None if act is None else act(node.name, allocation_id))


def several_page(title: str, said: str, address: str, nodes: Sequence[SeenNode]) -> DashboardPage:
    """Links to what each of the nodes has under one address."""
    ways = [element("a", each.name, href=f"{address}?node={quote(each.name, safe='')}") for each in nodes]
    return DashboardPage(
        title, element("div", element("p", said), element("ul", [element("li", each) for each in ways]))
    )


def layouts_address(node: str) -> str:
    """The address of the page on what layouts would do on a node."""
    return f"/nodes/{quote(node, safe='')}/layouts"


def not_of_now(node: SeenNode) -> Iterator[str]:
    """Why the page is not current, and its time."""
    if node.trouble and node.seen is not None:
        yield f"No report since {describe.said_in_utc(node.seen)}: {node.trouble}. The page shows the state at that time."
    elif node.unknown:
        yield node.unknown


def _readings(node: SeenNode, use: UseReport, now: float) -> Sequence[Document]:
    """How much the GPUs and the slices that still exist are used now; empty if the reading is too old."""
    if node.trouble or abs(now - use.taken) >= _LATE_SECONDS:
        return ()
    there = [
        (gpu["uuid"], each["gpuInstanceId"], each["placement"])
        for gpu in node.overview["gpus"]
        for each in gpu["slices"]
    ]
    return [
        {
            **reading,
            "slices": [
                each
                for each in reading["slices"]
                if (reading["gpuUUID"], each["gpuInstanceId"], each["placement"]) in there
            ],
        }
        for reading in use.readings
    ]


def _of_node(page: DashboardPage, node: SeenNode) -> DashboardPage:
    return DashboardPage(
        page.title, page.live, element("p", "On node ", node_link(node.name)), every=round(READ_SECONDS)
    )


def _facts(node: SeenNode) -> Iterator[tuple[str, Child]]:
    standing = node.standing
    if standing.ready is not None:
        yield "kubelet", "ready" if standing.ready else "not ready"
    if standing.unschedulable:
        yield "pods", "no new pods (cordoned)"
    if standing.mode and node.seen is not None:
        yield "mode", standing.mode
    for name, value in standing.labels.items():
        yield name, code(value)
    yield "seen", "never" if node.seen is None else moment(describe.timestamp(node.seen))


def _holders(node: SeenNode, now: float, order: TableOrder) -> Element:
    labels = {gpu["uuid"]: f"GPU {gpu['index']}" for gpu in node.overview["gpus"]}
    rows = [
        (
            share_link(each["id"]),
            holder_without_id(each),
            whose(each),
            element("span", _pieces(each, labels)),
            each["phase"],
            span_since(each["created"], now),
        )
        for each in node.overview["allocations"]
    ]
    columns = ("Share", "Held by", "User", "What", "State", "For")
    return order.table("shares", "Shares on this node", columns, rows, "It has no shares.")


def _pieces(allocation: Document, labels: dict[str, str]) -> Iterator[Child]:
    for place, each in enumerate(allocation["grants"]):
        yield from (", ",) if place else ()
        what = each["profile"] or "all"
        amount = f"{memory(each['memoryBytes'])} of " if "memoryBytes" in each else ""
        yield f"{amount}{what} of "
        yield gpu_link(each["gpuUUID"], labels.get(each["gpuUUID"], each["gpuUUID"]))
