"""How each GPU was cut and who held what of it, as the server itself has seen it since it began to watch.

Agents tell what is now, and nobody keeps the past of all nodes. What was there when the server began was there before, as far as
it knows; what came and went between two words of an agent, a second apart, it has not seen. What has gone while nobody was heard
is shown until the node was last heard. The oldest is forgotten first, and since when nothing was is said of each GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tranche.dashboard.cluster.apart import apart
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, SeenNode
from tranche.dashboard.cluster.visibility import namespace_of
from tranche.documents.blocks import Document, holder_without_id
from tranche.documents.history import HistoryPlace, place_of, seconds_of

MOST_SPANS = 200_000
"""What has ended of the whole cluster and is kept: about 60 MB, and an hour of 50 changes a second."""
MOST_SILENCES = 20
"""Of each node, and of the server itself."""

MOST_GONE = 64
"""GPUs of each node of which it tells no more, and that may come back."""

GpuPlace = tuple[str, str]
"""A GPU by its node's name and its UUID: two nodes may name theirs alike."""


class EndedSpan(NamedTuple):
    """A slice that was there, or with an id a share that was held, of whom in which namespace. Times as in `HistorySpan`.

    `owned` is whether Tranche made the slice, None where that is not known.
    """

    place: HistoryPlace
    began: float | None
    ended: float
    allocation_id: str = ""
    namespace: str = ""
    holder: str = ""
    owned: bool | None = None


class UnreportedSpan(NamedTuple):
    """A time for which a node was not heard, or nothing was; `until` is None where it still is so."""

    since: float
    until: float | None


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """What is known of one GPU since `since`: what has ended, when slices that are there were made, and what was not heard."""

    since: float
    ended: tuple[EndedSpan, ...]
    began: Mapping[HistoryPlace, float]
    silences: tuple[UnreportedSpan, ...]


def too_many_gone(kept: Iterable[GpuPlace], before: SeenNode, node: SeenNode) -> list[GpuPlace]:
    """GPUs of which the node tells no more, but for the newest few: a GPU may come back, and whoever tells of new ones all the
    time must not fill the server's memory.
    """
    told = {gpu["uuid"] for gpu in node.overview["gpus"]}
    if told.issuperset(gpu["uuid"] for gpu in before.overview["gpus"]):
        return []
    return [at for at in kept if at[0] == node.name and at[1] not in told][:-MOST_GONE]


class ClusterHistory:
    """Takes each snapshot, in the order in which they were seen."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self._most = most
        self._last: ClusterSnapshot | None = None
        self._since = 0.0
        self._heard: dict[str, SeenNode] = {}
        self._deaf: deque[UnreportedSpan] = deque(maxlen=MOST_SILENCES)
        self._silent: dict[str, float] = {}
        self._silences: dict[str, deque[UnreportedSpan]] = {}
        self._reached: dict[GpuPlace, Document] = {}
        self._began: dict[GpuPlace, dict[HistoryPlace, float]] = {}
        self._ended: dict[GpuPlace, deque[EndedSpan]] = {}
        self._order: deque[GpuPlace] = deque()
        self._forgotten: dict[GpuPlace, float] = {}
        self._places: dict[HistoryPlace, HistoryPlace] = {}

    def take(self, snapshot: ClusterSnapshot, trouble: str = "") -> None:
        """The cluster is as this one says; with `trouble` the server hears nothing of it, or not of all."""
        if self._last is None:
            self._since = snapshot.taken
        self._listen(snapshot.taken, deaf=bool(trouble))
        change = None if self._last is None else snapshot.since(self._last.version)
        for name in self._heard.keys() - snapshot.nodes.keys():
            self._forget(name)
        for node in snapshot.nodes.values() if change is None else change.nodes:
            apart(node.name, partial(self._look, node), lambda: None)
        self._last = snapshot

    def past(self, node: str, uuid: str) -> GpuHistory:
        """What is known of that GPU."""
        at = (node, uuid)
        silences = [*self._deaf, *self._silences.get(node, ())]
        if node in self._silent:
            silences.append(UnreportedSpan(self._silent[node], None))
        return GpuHistory(
            max(self._since, self._forgotten.get(at, 0.0)),
            tuple(self._ended.get(at, ())),
            dict(self._began.get(at, ())),
            tuple(sorted(silences, key=lambda each: each.since)),
        )

    def _listen(self, now: float, *, deaf: bool) -> None:
        still = bool(self._deaf) and self._deaf[-1].until is None
        if deaf and not still:
            self._deaf.append(UnreportedSpan(now, None))
        elif still and not deaf:
            self._deaf.append(UnreportedSpan(self._deaf.pop().since, now))

    def _known(self, node: SeenNode, heard: float) -> float:
        """Until when what was there is known to have been there, of a node that is heard of at `heard`."""
        last = None if self._last is None else self._last.nodes.get(node.name)
        if last is None or last.seen is None:
            return heard
        return next((each.since for each in self._deaf if last.seen <= each.since < heard), heard)

    def _look(self, node: SeenNode) -> None:
        before = self._heard.get(node.name)
        if node.seen is None or node.trouble:
            if before is not None:
                last = before if self._last is None else self._last.nodes.get(node.name, before)
                self._silent.setdefault(node.name, node.seen or last.seen or self._since)
            return
        silent = self._silent.pop(node.name, None)
        if silent is not None:
            kept = self._silences.setdefault(node.name, deque(maxlen=MOST_SILENCES))
            kept.append(UnreportedSpan(silent, node.seen))
        known = self._known(node, node.seen) if silent is None else silent
        if before is not None:
            self._shares_ended(node.name, before.overview["allocations"], node.overview["allocations"], known)
        for gpu in node.overview["gpus"]:
            self._compare((node.name, gpu["uuid"]), gpu, node.seen, known)
        if before is not None:
            for at in too_many_gone(self._reached, before, node):
                del self._reached[at]
                self._began.pop(at, None)
        self._heard[node.name] = node

    def _compare(self, at: GpuPlace, gpu: Document, seen: float, known: float) -> None:
        """What is on the GPU beside what was; of one that the driver cannot reach nobody knows what is on it."""
        if gpu["lost"]:
            return
        before, self._reached[at] = self._reached.get(at), gpu
        if before is None or before["slices"] == gpu["slices"]:
            return
        was, now = self._slices(before), self._slices(gpu)
        began = self._began.setdefault(at, {})
        for place, owned in was.items():
            if place not in now:
                self._end(at, EndedSpan(place, began.pop(place, None), known, owned=owned))
        began.update(dict.fromkeys(now.keys() - was.keys(), seen))

    def _shares_ended(self, node: str, was: Iterable[Document], now: Iterable[Document], known: float) -> None:
        left = {each["id"] for each in now}
        for each in was:
            if each["id"] in left:
                continue
            holder = holder_without_id(each)
            for grant in each["grants"]:
                place = self._place(grant)
                self._end(
                    (node, grant["gpuUUID"]),
                    EndedSpan(place, seconds_of(each["created"]), known, each["id"], namespace_of(each), holder),
                )

    def _slices(self, gpu: Document) -> dict[HistoryPlace, bool | None]:
        """Those that are there, each with whether Tranche made it."""
        return {self._place(each): each["owned"] for each in gpu["slices"] if each["gpuInstanceId"] is not None}

    def _place(self, document: Document) -> HistoryPlace:
        place = place_of(document)
        return self._places.setdefault(place, place)

    def _end(self, at: GpuPlace, span: EndedSpan) -> None:
        self._ended.setdefault(at, deque()).append(span)
        self._order.append(at)
        while len(self._order) > self._most:
            oldest = self._order.popleft()
            if kept := self._ended.get(oldest):
                self._forgotten[oldest] = kept.popleft().ended

    def _forget(self, name: str) -> None:
        """The node is not of this cluster any more."""
        del self._heard[name]
        self._silent.pop(name, None)
        self._silences.pop(name, None)
        for kept in (self._reached, self._began, self._ended, self._forgotten):
            for at in [each for each in kept if each[0] == name]:
                del kept[at]
