"""What namespaces hold of a cluster and do not use, as a viewer may see it: over the last day, and now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from tranche.core.quantity import GIB
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, SeenNode, apart
from tranche.dashboard.cluster.visibility import NameVisibility
from tranche.dashboard.cluster.waste_history import NamespaceUsage, WasteReport
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.parts import figures, memory, moment, node_link, notes, share_link, span_since
from tranche.dashboard.table_order import TableOrder
from tranche.documents import describe
from tranche.documents.blocks import Document, holder_without_id
from tranche.documents.markup import Child, element
from tranche.documents.waste import held_now

MOST = 100
"""Rows of what is unused now."""
_NO_SPACE = "no namespace"
_NO_ORDER = TableOrder()

_Unused = tuple[int, "Sequence[Child | None]"]


def waste_data(report: WasteReport, sight: NameVisibility, others: bool) -> dict[str, Any]:
    """The fields of a ClusterWaste document; with `others` the hidden namespaces are added up as one, `null`."""
    named = [(name, use) for name, use in report.spaces.items() if sight.sees(name)]
    hidden = [use for name, use in report.spaces.items() if not sight.sees(name)]
    rows = [_row(name, use) for name, use in sorted(named, key=lambda pair: (-pair[1].unused_seconds, pair[0]))]
    if hidden and others:
        rows.append(_row(None, _together(hidden)))
    return {
        "since": describe.timestamp(report.since),
        "until": describe.timestamp(report.until),
        "namespaces": rows,
        "unheardNodes": report.unheard if others else None,
    }


def cluster_waste_page(
    waste: Document | None, seen: ClusterSnapshot, sight: NameVisibility, order: TableOrder = _NO_ORDER
) -> DashboardPage:
    """A ClusterWaste document, and what the visible nodes have held and unused now."""
    if waste is None:
        return DashboardPage("Waste", element("div", notes(seen.notes), element("p", "No data yet.")))
    rows = [_shown(each) for each in waste["namespaces"]]
    unheard = waste["unheardNodes"]
    unused = sorted(_unused(seen, sight), key=lambda pair: -pair[0])
    said = element(
        "p",
        "This server has looked since ",
        moment(waste["since"]),
        ", and keeps a day. A share is unused while no process is in its device.",
        f" Nodes of which nothing is heard are not counted: {unheard}." if unheard else "",
        class_="muted",
    )
    live = element(
        "div",
        notes(seen.notes),
        figures(
            [
                ("held", memory(sum(each["heldBytes"] for each in waste["namespaces"]))),
                ("held and unused", memory(sum(each["unusedBytes"] for each in waste["namespaces"]))),
            ]
        ),
        order.table(
            "namespaces",
            "By namespace, who held most without using it first",
            ("Namespace", "Held", "of it unused", "Share", "Held now", "Unused now"),
            rows,
            "Nobody held anything.",
        ),
        said,
        element("h2", "Now"),
        order.table(
            "unused",
            "Held, and no process is in it, the largest first",
            ("What", "Node", "Held by", "Memory", "Held for"),
            [row for _, row in unused[:MOST]],
            "All that is held, and that you may see, is in use.",
        ),
        element("p", f"And {len(unused) - MOST:,} more.") if len(unused) > MOST else None,
    )
    return DashboardPage("Waste", live)


def _together(uses: Iterable[NamespaceUsage]) -> NamespaceUsage:
    total = NamespaceUsage()
    for each in uses:
        total.held += each.held
        total.unused += each.unused
        total.held_seconds += each.held_seconds
        total.unused_seconds += each.unused_seconds
    return total


def _row(name: str | None, use: NamespaceUsage) -> dict[str, Any]:
    return {
        "namespace": name,
        "heldBytes": use.held,
        "unusedBytes": use.unused,
        "heldByteSeconds": round(use.held_seconds),
        "unusedByteSeconds": round(use.unused_seconds),
    }


def _shown(each: Document) -> Sequence[Child | None]:
    name = "other namespaces" if each["namespace"] is None else each["namespace"] or _NO_SPACE
    held, unused = each["heldByteSeconds"], each["unusedByteSeconds"]
    share = f"{unused / held:.0%}" if held else None
    return name, _hours(held), _hours(unused), share, memory(each["heldBytes"]), memory(each["unusedBytes"])


def _hours(byte_seconds: int) -> str:
    return f"{byte_seconds / GIB / 3600:,.1f} GiB·h"


def _unused(seen: ClusterSnapshot, sight: NameVisibility) -> Iterator[_Unused]:
    """Each device with a visible holder and no process, with its bytes."""
    for node in seen.nodes.values():
        if not node.trouble and node.seen is not None:
            rows: list[_Unused] = apart(node.name, partial(_unused_of, node, seen.taken, sight), list)
            yield from rows


def _unused_of(node: SeenNode, now: float, sight: NameVisibility) -> list[_Unused]:
    known = {each["id"]: each for each in node.overview["allocations"]}
    spaces, found = node.namespaces, []
    for each in held_now(node.overview["gpus"], node.overview["allocations"]):
        if each.used or not sight.sees(spaces[each.allocation_id]):
            continue
        allocation = known[each.allocation_id]
        name = holder_without_id(allocation)
        row: Sequence[Child | None] = (
            _what(each.gpu, each.device),
            node_link(node.name),
            element("span", share_link(each.allocation_id), f" {name}"),
            memory(each.memory),
            span_since(allocation["created"], now),
        )
        found.append((each.memory, row))
    return found


def _what(gpu: Document, device: Document) -> str:
    if device is gpu:
        return f"GPU {gpu['index']}"
    return f"{device['profile']} at {device['placement']['start']}:{device['placement']['size']} of GPU {gpu['index']}"
