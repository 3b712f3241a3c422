"""A GPU of a cluster over time: what the server has seen of it, as a picture and as tables, without hidden names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tranche.dashboard.cluster.cluster_history import GpuHistory, UnreportedSpan
from tranche.dashboard.cluster.snapshot import SeenNode
from tranche.dashboard.cluster.visibility import HIDDEN, NameVisibility
from tranche.dashboard.gauges_view import gauges_view
from tranche.dashboard.history_view import hours_choice, spans_drawn
from tranche.dashboard.parts import maker, moment, share_link, table
from tranche.documents import describe
from tranche.documents.blocks import Document, holder_without_id
from tranche.documents.history import HistorySpan, place_of, seconds_of
from tranche.documents.markup import Child, Element, element
from tranche.kubernetes.telling.use_report import KEPT_DAYS, LINES_KEPT_HOURS, NO_USE, UseReport

Row = tuple[HistorySpan, Child]
"""A span, and its caption: who made it, or for whom."""

_GAUGES = (
    "The node's agent reads the gauges once a minute. "
    f"It keeps means of five minutes for {LINES_KEPT_HOURS} hours and of half an hour for {KEPT_DAYS} days, as far as they fit. "
    "In a gap no agent ran, its driver did not answer, or this was not measured."
)
_BEFORE = ". Of the time before that is known only since when shares are held that were there then."
_NO_CAUSE = (
    "Who had a slice made or destroyed is in the node's own events: tranche events there, and the events of its layout. "
    "What came and went within a second was not seen."
)


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
    slices = [each for each in _in_order(_slices(gpu, past)) if each[0].meets(since)]
    shares = [each for each in _in_order(_shares(node, gpu, past, sight)) if each[0].meets(since)]
    return element(
        "div",
        element("h2", "Over time"),
        hours_choice(gpu["uuid"], hours, node.name),
        charts or element("p", f"Nothing is known of its use in this time. {_GAUGES}", class_="muted"),
        element("p", "Watched since ", moment(describe.timestamp(past.since)), _BEFORE),
        [_silence(each) for each in past.silences if each.until is None or each.until >= since],
        spans_drawn(gpu, [span for span, _ in slices], [span for span, _ in shares], now, hours)
        if slices or shares
        else None,
        _held(shares),
        _there(slices),
        element("p", _NO_CAUSE, class_="muted"),
    )


def _slices(gpu: Document, past: GpuHistory) -> Iterator[Row]:
    for each in past.ended:
        if not each.allocation_id:
            yield HistorySpan(each.place, each.began, each.ended), _maker(each.owned)
    for each in gpu["slices"]:
        if each["gpuInstanceId"] is not None:
            place = place_of(each)
            yield HistorySpan(place, past.began.get(place), None), _maker(each["owned"])


def _shares(node: SeenNode, gpu: Document, past: GpuHistory, sight: NameVisibility) -> Iterator[Row]:
    for each in past.ended:
        if each.allocation_id:
            holder = each.holder if sight.sees(each.namespace) else HIDDEN
            yield HistorySpan(each.place, each.began, each.ended, each.allocation_id), holder
    for each in node.overview["allocations"]:
        holder = holder_without_id(each)
        for grant in each["grants"]:
            if grant["gpuUUID"] == gpu["uuid"]:
                yield HistorySpan(place_of(grant), seconds_of(each["created"]), None, each["id"]), holder


def _in_order(rows: Iterator[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row[0].began or 0.0, row[0].place))


def _maker(owned: bool | None) -> str:
    return maker(owned) or "not known"


def _silence(each: UnreportedSpan) -> Element:
    said: list[Child] = ["Not heard from ", moment(describe.timestamp(each.since))]
    if each.until is not None:
        said += [" until ", moment(describe.timestamp(each.until))]
    return element(
        "p", *said, ": what ended meanwhile is shown until then, what was made as found after it.", class_="note"
    )


def _held(shares: Sequence[Row]) -> Element:
    rows = [
        (
            share_link(span.allocation_id) if span.ended is None else span.allocation_id,
            str(span.place),
            holder,
            *_times(span, "held still"),
        )
        for span, holder in reversed(shares)
    ]
    name = "Who held what of it, newest first"
    return table(name, ("Share", "What", "For", "From", "Until"), rows, "Nobody held any of it.")


def _there(slices: Sequence[Row]) -> Element:
    rows = [(str(span.place), maker, *_times(span, "there still")) for span, maker in reversed(slices)]
    return table("Its slices, newest first", ("Slice", "Made by", "From", "Until"), rows, "It was not cut.")


def _times(span: HistorySpan, still: str) -> tuple[Child, Child]:
    began = "before it was watched" if span.began is None else moment(describe.timestamp(span.began))
    return began, still if span.ended is None else moment(describe.timestamp(span.ended))
