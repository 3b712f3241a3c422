"""How much each namespace held of a cluster over the last day, and how much of that had no process in it.

Nothing else keeps the past of all nodes, so the server adds up what it sees; after a restart it starts over, and says since when
it has looked. What nodes hold while they are not heard counts for no namespace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from tranche.dashboard.cluster.snapshot import ClusterSnapshot, SeenNode, apart
from tranche.documents.waste import held_now

SLOT_SECONDS = 900.0
SLOTS = 96
"""A day of quarters of an hour."""


@dataclass(slots=True)
class NamespaceUsage:
    """A namespace's use: bytes that it holds now, those of them without a process, and both in byte-seconds."""

    held: int = 0
    unused: int = 0
    held_seconds: float = 0.0
    unused_seconds: float = 0.0


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
        found: dict[str, NamespaceUsage] = {
            name: NamespaceUsage(use.held, use.unused) for name, use in self._now.items()
        }
        for slot in self._slots:
            for name, use in slot.spaces.items():
                total = found.setdefault(name, NamespaceUsage())
                total.held_seconds += use.held_seconds
                total.unused_seconds += use.unused_seconds
        spaces = {name: use for name, use in found.items() if use.held or use.held_seconds}
        unheard = sum(each is None for each in self._nodes.values())
        return WasteReport(self._slots[0].began, self._last.taken, spaces, unheard)

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
