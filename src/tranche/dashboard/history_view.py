"""A GPU over time: slices from top to bottom, time from left to right, and as a table; and how long a state lasts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from tranche.dashboard.parts import TableOrder, moment, share_link, span_since
from tranche.documents import describe
from tranche.documents.blocks import BlockStatus, Document, holder_without_id
from tranche.documents.history import (
    HistorySpan,
    changed_at,
    cordoned_at,
    events_by_gpu,
    seconds_of,
    shares_over_time,
    slices_over_time,
)
from tranche.documents.markup import Child, Element, element
from tranche.documents.picture import CLASSES, pattern_of

_VACANT = frozenset({BlockStatus.IDLE, BlockStatus.FREE, BlockStatus.UNUSABLE})
HOURS = (1, 6, 24, 168)
"""The lengths of time that can be chosen."""

_UNIT, _UNCUT = 20, 8
_SHORT_PERCENT = 9.0


class StateHistory:
    """Made from an Overview; `events` are all that are kept, oldest first, or none where unknown."""

    def __init__(self, overview: Document, events: Sequence[Document], now: float) -> None:
        self.known = {each["id"]: each for each in overview["allocations"]}
        self._events = events_by_gpu(events)
        self._now = now
        self._spans: dict[str, list[HistorySpan]] = {}

    def said(self, gpu: Document, state: str, placement: Document | None, holders: Sequence[str]) -> Element | None:
        """How long that stretch of the GPU has been in that state; None where unknown.

        A held stretch counts from when the first of its holders got it.
        """
        began = [seconds_of(self.known[each]["created"]) for each in holders if each in self.known]
        when = min(began, default=None)
        if state == BlockStatus.CORDONED:
            when = cordoned_at(gpu["uuid"], self._events.get(gpu["uuid"], ()))
        elif state in _VACANT:
            when = changed_at(placement, self._of(gpu))
        return None if when is None else span_since(describe.timestamp(when), self._now)

    def _of(self, gpu: Document) -> list[HistorySpan]:
        uuid = gpu["uuid"]
        if uuid not in self._spans:
            events = self._events.get(uuid, [])
            shares = shares_over_time(uuid, events, self.known.values())
            self._spans[uuid] = [*slices_over_time(gpu, events), *shares]
        return self._spans[uuid]


def history_view(
    gpu: Document, overview: Document, events: Sequence[Document], now: float, hours: int, order: TableOrder
) -> Element:
    """The last `hours` hours of the GPU."""
    known = {each["id"]: each for each in overview["allocations"]}
    slices = slices_over_time(gpu, events)
    shares = shares_over_time(gpu["uuid"], events, overview["allocations"])
    return element(
        "section",
        element("h2", "Slices and shares"),
        spans_drawn(gpu, slices, shares, now, hours),
        _as_table([each for each in shares if each.meets(now - hours * 3600)], known, order),
    )


def spans_drawn(
    gpu: Document, slices: Sequence[HistorySpan], shares: Sequence[HistorySpan], now: float, hours: int
) -> Element:
    """Slices and shares of the GPU in the last so many hours, as a picture; a table below must say the same."""
    since = now - hours * 3600
    slices, shares = ([each for each in every if each.meets(since)] for every in (slices, shares))
    units = gpu["memorySlices"] or _UNCUT
    drawing = _Drawing(units, since, now)
    boxes = [*map(drawing.slice_box, slices), *drawing.share_boxes(shares)]
    described = f"{len(slices)} slices and {len(shares)} shares; the table below has the same data"
    picture = element(
        "svg", boxes, role="img", aria_label=described, width="100%", height=units * _UNIT, class_="bar history"
    )
    axis = element(
        "p", moment(describe.timestamp(since)), element("span", moment(describe.timestamp(now))), class_="axis muted"
    )
    return element("div", picture, axis, class_="card")


def hours_asked(text: str) -> int:
    """The hours that an address asks for; one of HOURS."""
    return next((each for each in HOURS if str(each) == text), HOURS[0])


class _Drawing:
    """Maps moments and places to coordinates."""

    def __init__(self, units: int, since: float, until: float) -> None:
        self._units, self._since, self._until = units, since, until

    def slice_box(self, span: HistorySpan) -> Element:
        """A slice over its lifetime."""
        left, width = self._stretch(span)
        top, height = self._rows(span)
        inside = [element("title", f"{span.place}: {_times(span)}"), *_filled(BlockStatus.IDLE)]
        if width >= _SHORT_PERCENT:
            inside.append(
                element("text", span.place.profile, x="100%", dx=-6, y=14, text_anchor="end", class_="tr-text tr-small")
            )
        return element("svg", inside, x=f"{left:.4g}%", width=f"{width:.4g}%", y=top, height=height)

    def share_boxes(self, shares: Sequence[HistorySpan]) -> Iterator[Element]:
        """Shares while they were held; those at one place at the same time lie in lanes."""
        lanes: dict[object, list[float]] = {}
        placed: list[tuple[HistorySpan, int]] = []
        for span in shares:
            ends = lanes.setdefault(span.place, [])
            began, ended = span.within(self._since, self._until)
            lane = next((n for n, end in enumerate(ends) if end <= began), len(ends))
            ends[lane : lane + 1] = [self._until + 1 if span.ended is None else ended]
            placed.append((span, lane))
        for span, lane in placed:
            count = len(lanes[span.place])
            left, width = self._stretch(span)
            top, height = self._rows(span)
            inside = [
                element("title", f"{span.allocation_id}: {span.place} {_times(span)}"),
                *_filled(BlockStatus.HELD),
            ]
            if width >= _SHORT_PERCENT and height / count >= 14:
                inside.append(element("text", span.allocation_id, x=6, y=14, class_="tr-text tr-small"))
            yield element(
                "svg",
                inside,
                x=f"{left:.4g}%",
                width=f"{width:.4g}%",
                y=top + lane * height / count,
                height=height / count,
            )

    def _stretch(self, span: HistorySpan) -> tuple[float, float]:
        length = self._until - self._since
        began, ended = span.within(self._since, self._until)
        left = min(99.6, 100 * (began - self._since) / length)
        return left, max(0.4, 100 * (ended - began) / length)

    def _rows(self, span: HistorySpan) -> tuple[int, int]:
        size = span.place.size or self._units
        return span.place.start * _UNIT, size * _UNIT


def _filled(look: BlockStatus) -> Iterator[Element]:
    whole = {"width": "100%", "height": "100%"}
    yield element("rect", class_=CLASSES[look], **whole)
    yield element("rect", class_="tr-box", fill=pattern_of(look), **whole)


def _times(span: HistorySpan) -> str:
    began = "" if span.began is None else f"from {describe.timestamp(span.began)} "
    return f"{began}{'until now' if span.ended is None else 'until ' + describe.timestamp(span.ended)}"


def hours_choice(uuid: str, chosen: int, node: str = "") -> Element:
    """Links to other lengths of time; `node` is the GPU's, where a cluster has several."""
    more = f"&node={quote(node, safe='')}" if node else ""
    words = {1: "last hour", 6: "6 hours", 24: "day", 168: "week"}
    ways = [
        element(
            "li",
            element(
                "a",
                words[each],
                href=f"/gpus/{quote(uuid, safe='')}?hours={each}{more}",
                id=f"hours-{each}",
                aria_current="true" if each == chosen else None,
            ),
        )
        for each in HOURS
    ]
    return element("ul", ways, class_="choices", aria_label="How long")


def _as_table(shares: Sequence[HistorySpan], known: Mapping[str, Document], order: TableOrder) -> Element:
    rows: list[tuple[Child | None, ...]] = [
        (
            share_link(each.allocation_id),
            str(each.place),
            holder_without_id(known[each.allocation_id]) if each.allocation_id in known else "",
            None if each.began is None else moment(describe.timestamp(each.began)),
            "still held" if each.ended is None else moment(describe.timestamp(each.ended)),
        )
        for each in reversed(shares)
    ]
    columns = ("Share", "What", "Holder", "From", "Until")
    return order.table("held", "Past holders, newest first", columns, rows, "It was not held.")
