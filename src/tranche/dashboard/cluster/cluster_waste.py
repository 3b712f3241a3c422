"""How much each namespace held of a cluster over the last day, and how much of that had no process in it, with the page of it.

Nothing else keeps the past of all nodes, so the server adds up what it sees; after a restart it starts over, and says since when
it has looked. What nodes hold while they are not heard counts for no namespace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tranche.core.quantity import GIB
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, NameVisibility, SeenNode, apart
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.parts import TableOrder, figures, memory, moment, node_link, notes, share_link, span_since
from tranche.documents import describe
from tranche.documents.blocks import Document, holder_without_id
from tranche.documents.markup import Child, element
from tranche.documents.waste import held_now

SLOT_SECONDS = 900.0
SLOTS = 96
"""A day of quarters of an hour."""
MOST = 100
"""Rows of what is unused now."""
_NO_SPACE = "no namespace"
_NO_ORDER = TableOrder()

_Unused = tuple[int, "Sequence[Child | None]"]


@dataclass(slots=True)
class NamespaceUsage:
    """A namespace's use: bytes that it holds now, those of them without a process, and both in byte-seconds."""

    held: int = 0
    unused: int = 0
    held_seconds: float = 0.0
    unused_seconds: float = 0.0

    def add(self, other: NamespaceUsage) -> None:
        """Add what another one has."""
        self.held += other.held
        self.unused += other.unused
        self.held_seconds += other.held_seconds
        self.unused_seconds += other.unused_seconds


@dataclass(frozen=True, slots=True)
class WasteReport:
    """The sums from `since` to `until`, by namespace; "" is for those without one. `unheard` nodes are not counted now."""

    since: float
    until: float
    spaces: Mapping[str, NamespaceUsage]
    unheard: int


@dataclass(slots=True)
class _Slot:
    began: float
    spaces: dict[str, NamespaceUsage] = field(default_factory=dict)


class WasteHistory:
    """Takes each snapshot, in the order seen."""

    def __init__(self) -> None:
        self._last: ClusterSnapshot | None = None
        self._nodes: dict[str, Mapping[str, NamespaceUsage] | None] = {}
        self._now: dict[str, NamespaceUsage] = {}
        self._slots: deque[_Slot] = deque(maxlen=SLOTS)

    def take(self, snapshot: ClusterSnapshot) -> None:
        """The last snapshot's state held until now; from now on this one's does."""
        if self._last is not None:
            self._add(snapshot.taken - self._last.taken, snapshot.taken)
        change = None if self._last is None else snapshot.since(self._last.version)
        if change is None:
            self._nodes, self._now = {}, {}
        for name in self._nodes.keys() - snapshot.nodes.keys():
            self._count(self._nodes.pop(name), -1)
        for node in snapshot.nodes.values() if change is None else change.nodes:
            self._count(self._nodes.get(node.name), -1)
            uses = apart(node.name, partial(_uses_of, node), lambda: None)
            self._nodes[node.name] = uses
            self._count(uses, 1)
        if not self._slots:
            self._slots.append(_Slot(snapshot.taken))
        self._last = snapshot

    def report(self) -> WasteReport | None:
        """What is known; None before anything was seen."""
        if self._last is None:
            return None
        found: dict[str, NamespaceUsage] = {}
        for spaces in (self._now, *(slot.spaces for slot in self._slots)):
            for name, use in spaces.items():
                found.setdefault(name, NamespaceUsage()).add(use)
        shown = {name: use for name, use in found.items() if use.held or use.held_seconds}
        unheard = sum(each is None for each in self._nodes.values())
        return WasteReport(self._slots[0].began, self._last.taken, shown, unheard)

    def _add(self, seconds: float, until: float) -> None:
        """Add so many seconds of the present state; a clock that was set back adds none."""
        if seconds <= 0:
            return
        if until - self._slots[-1].began >= SLOT_SECONDS:
            self._slots.append(_Slot(until - seconds))
        spaces = self._slots[-1].spaces
        for name, use in self._now.items():
            if use.held:
                total = spaces.setdefault(name, NamespaceUsage())
                total.held_seconds += use.held * seconds
                total.unused_seconds += use.unused * seconds

    def _count(self, uses: Mapping[str, NamespaceUsage] | None, sign: int) -> None:
        for name, use in (uses or {}).items():
            total = self._now.setdefault(name, NamespaceUsage())
            total.held += sign * use.held
            total.unused += sign * use.unused


def _uses_of(node: SeenNode) -> Mapping[str, NamespaceUsage] | None:
    """What each namespace has of the node; None if its present state is unknown."""
    if node.trouble or node.seen is None:
        return None
    found: dict[str, NamespaceUsage] = {}
    spaces = node.namespaces
    for each in held_now(node.overview["gpus"], node.overview["allocations"]):
        use = found.setdefault(spaces[each.allocation_id], NamespaceUsage())
        use.held += each.memory
        use.unused += 0 if each.used else each.memory
    return found


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
        "This server has watched the cluster since ",
        moment(waste["since"]),
        ", and keeps one day of data. A share is unused while no process uses its device.",
        f" Nodes without a current report are not counted: {unheard}." if unheard else "",
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
            "By namespace, most unused first",
            ("Namespace", "Held", "Unused", "Share", "Held now", "Unused now"),
            rows,
            "Nothing was held.",
        ),
        said,
        element("h2", "Now"),
        order.table(
            "unused",
            "Held, but without a running process; largest first",
            ("What", "Node", "Held by", "Memory", "Held for"),
            [row for _, row in unused[:MOST]],
            "All held devices that you can see are in use.",
        ),
        element("p", f"And {len(unused) - MOST:,} more.") if len(unused) > MOST else None,
    )
    return DashboardPage("Waste", live)


def _together(uses: Iterable[NamespaceUsage]) -> NamespaceUsage:
    total = NamespaceUsage()
    for each in uses:
        total.add(each)
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
