"""How long the GPUs of a machine and what is on them have been in their states, as far as shares and events tell. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tranche.dashboard.parts import span_since
from tranche.documents import describe
from tranche.documents.blocks import BlockStatus, Document
from tranche.documents.history import (
    HistorySpan,
    changed_at,
    cordoned_at,
    events_by_gpu,
    seconds_of,
    shares_over_time,
    slices_over_time,
)
from tranche.documents.markup import Element

_VACANT = frozenset({BlockStatus.IDLE, BlockStatus.FREE, BlockStatus.UNUSABLE})


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
