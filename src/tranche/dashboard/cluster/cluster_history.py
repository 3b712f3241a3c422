"""How each GPU was cut and who held what of it, as the server has seen it since it began to watch, and how a page shows it.

Agents report only the present, and nothing else keeps the past of all nodes. What existed when the server started may be older.
The server does not see what comes and goes between two reports of an agent, a second apart. What goes while nothing is heard
is shown until the node was last heard. The oldest is forgotten first, and each GPU says since when its history is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from tranche.dashboard.cluster.snapshot import HIDDEN, ClusterSnapshot, NameVisibility, SeenNode, apart, namespace_of
from tranche.dashboard.gauges_view import gauges_view
from tranche.dashboard.history_view import hours_choice, spans_drawn
from tranche.dashboard.parts import maker, moment, share_link, table
from tranche.documents import describe
from tranche.documents.blocks import Document, holder_without_id
from tranche.documents.history import HistoryPlace, HistorySpan, place_of, seconds_of
from tranche.documents.markup import Child, Element, element
from tranche.kubernetes.telling.use_report import KEPT_DAYS, LINES_KEPT_HOURS, NO_USE, UseReport

MOST_SPANS = 200_000
"""Kept ended spans of the whole cluster: about 60 MB, and an hour of 50 changes a second."""
MOST_SILENCES = 20
"""Kept for each node, and for the server itself."""

MOST_GONE = 64
"""GPUs kept for each node that it no longer reports, and that may come back."""

GpuPlace = tuple[str, str]
"""A GPU by its node's name and its UUID: two nodes may report the same UUID."""
_GAUGES = (
    "The node's agent reads the gauges once a minute. "
    f"It keeps five-minute means for {LINES_KEPT_HOURS} hours and half-hour means for {KEPT_DAYS} days, as space permits. "
    "A gap means that no agent ran, the driver did not answer, or the gauge was not measured."
)
_BEFORE = ". The page also knows the start times of the shares that it found then."
_NO_CAUSE = (
    "To see who caused a slice to be created or destroyed, run tranche events on the node, and see its layout's events. "
    "Changes that lasted less than a second are missing."
)


class UnreportedSpan(NamedTuple):
    """A time without reports from a node, or from all; `until` is None while it lasts."""

    since: float
    until: float | None


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """What is known of one GPU since `since`: what has ended, when its present slices were made, and when nothing was heard."""

    since: float
    ended: tuple[HistorySpan, ...]
    began: Mapping[HistoryPlace, float]
    silences: tuple[UnreportedSpan, ...]


def too_many_gone(kept: Iterable[GpuPlace], before: SeenNode, node: SeenNode) -> list[GpuPlace]:
    """GPUs that the node no longer reports, except the newest few. A GPU may come back, but a node that keeps reporting new ones
    must not fill the server's memory.
    """
    told = {gpu["uuid"] for gpu in node.overview["gpus"]}
    if told.issuperset(gpu["uuid"] for gpu in before.overview["gpus"]):
        return []
    return [at for at in kept if at[0] == node.name and at[1] not in told][:-MOST_GONE]


class ClusterHistory:
    """Takes each snapshot, in the order seen."""

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
        self._ended: dict[GpuPlace, deque[HistorySpan]] = {}
        self._order: deque[GpuPlace] = deque()
        self._forgotten: dict[GpuPlace, float] = {}
        self._places: dict[HistoryPlace, HistoryPlace] = {}

    def take(self, snapshot: ClusterSnapshot, trouble: str = "") -> None:
        """Take the cluster's state from this snapshot; with `trouble` the server hears nothing of it, or not everything."""
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
        """Until when the node's former state is known to have lasted, for a node heard at `heard`."""
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
        """Compare the GPU with its former state; the contents of a GPU that the driver cannot reach are unknown."""
        if gpu["lost"]:
            return
        before, self._reached[at] = self._reached.get(at), gpu
        if before is None or before["slices"] == gpu["slices"]:
            return
        was, now = self._slices(before), self._slices(gpu)
        began = self._began.setdefault(at, {})
        for place, owned in was.items():
            if place not in now:
                self._end(at, HistorySpan(place, began.pop(place, None), known, owned=owned))
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
                    HistorySpan(place, seconds_of(each["created"]), known, each["id"], namespace_of(each), holder),
                )

    def _slices(self, gpu: Document) -> dict[HistoryPlace, bool | None]:
        """The present slices, each with whether Tranche made it."""
        return {self._place(each): each["owned"] for each in gpu["slices"] if each["gpuInstanceId"] is not None}

    def _place(self, document: Document) -> HistoryPlace:
        place = place_of(document)
        return self._places.setdefault(place, place)

    def _end(self, at: GpuPlace, span: HistorySpan) -> None:
        self._ended.setdefault(at, deque()).append(span)
        self._order.append(at)
        while len(self._order) > self._most:
            oldest = self._order.popleft()
            if kept := self._ended.get(oldest):
                self._forgotten[oldest] = kept.popleft().ended or 0.0

    def _forget(self, name: str) -> None:
        """The node has left the cluster."""
        del self._heard[name]
        self._silent.pop(name, None)
        self._silences.pop(name, None)
        for kept in (self._reached, self._began, self._ended, self._forgotten):
            for at in [each for each in kept if each[0] == name]:
                del kept[at]


def past_view(
    node: SeenNode,
    gpu: Document,
    past: GpuHistory,
    sight: NameVisibility,
    now: float,
    hours: int,
    use: UseReport = NO_USE,
) -> Element:
    """The last so many hours, as far as known. `node` and `gpu` are as the viewer may see them."""
    since = now - hours * 3600
    charts = gauges_view(gpu, *use.over(hours, now), _GAUGES, (since, now))
    slices = [each for each in _in_order(_slices(gpu, past)) if each.meets(since)]
    shares = [each for each in _in_order(_shares(node, gpu, past, sight)) if each.meets(since)]
    return element(
        "div",
        element("h2", "Over time"),
        hours_choice(gpu["uuid"], hours, node.name),
        charts or element("p", f"Its use during this time is unknown. {_GAUGES}", class_="muted"),
        element("p", "Watched since ", moment(describe.timestamp(past.since)), _BEFORE),
        [_silence(each) for each in past.silences if each.until is None or each.until >= since],
        spans_drawn(gpu, slices, shares, now, hours) if slices or shares else None,
        _held(shares),
        _there(slices),
        element("p", _NO_CAUSE, class_="muted"),
    )


def _slices(gpu: Document, past: GpuHistory) -> Iterator[HistorySpan]:
    yield from (each for each in past.ended if not each.allocation_id)
    for each in gpu["slices"]:
        if each["gpuInstanceId"] is not None:
            place = place_of(each)
            yield HistorySpan(place, past.began.get(place), None, owned=each["owned"])


def _shares(node: SeenNode, gpu: Document, past: GpuHistory, sight: NameVisibility) -> Iterator[HistorySpan]:
    for each in past.ended:
        if each.allocation_id:
            yield each if sight.sees(each.namespace) else replace(each, holder=HIDDEN, namespace="")
    for held in node.overview["allocations"]:
        for grant in held["grants"]:
            if grant["gpuUUID"] == gpu["uuid"]:
                began, holder = seconds_of(held["created"]), holder_without_id(held)
                yield HistorySpan(place_of(grant), began, None, held["id"], holder=holder)


def _in_order(spans: Iterator[HistorySpan]) -> list[HistorySpan]:
    return sorted(spans, key=lambda each: (each.began or 0.0, each.place))


def _silence(each: UnreportedSpan) -> Element:
    said: list[Child] = ["No report from ", moment(describe.timestamp(each.since))]
    if each.until is not None:
        said += [" until ", moment(describe.timestamp(each.until))]
    return element(
        "p",
        *said,
        ": starts and ends during this time are shown at its end.",
        class_="note",
    )


def _held(shares: Sequence[HistorySpan]) -> Element:
    rows = [
        (
            share_link(each.allocation_id) if each.ended is None else each.allocation_id,
            str(each.place),
            each.holder,
            *_times(each, "still held"),
        )
        for each in reversed(shares)
    ]
    name = "Past holders, newest first"
    return table(name, ("Share", "What", "For", "From", "Until"), rows, "It was not held.")


def _there(slices: Sequence[HistorySpan]) -> Element:
    rows = [
        (str(each.place), maker(each.owned) or "unknown", *_times(each, "still there")) for each in reversed(slices)
    ]
    return table("Its slices, newest first", ("Slice", "Made by", "From", "Until"), rows, "It had no slices.")


def _times(span: HistorySpan, still: str) -> tuple[Child, Child]:
    began = "before it was watched" if span.began is None else moment(describe.timestamp(span.began))
    return began, still if span.ended is None else moment(describe.timestamp(span.ended))
