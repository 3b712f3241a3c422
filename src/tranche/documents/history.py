"""The cuts and holders of a GPU over time, from the events and the present state.

Events cover Tranche's own steps only. A slice that another tool made, or that a restart removed, has no event. A present slice is
assumed to have always existed. A vanished one is shown until its last mention.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tranche.documents.blocks import Document

_CREATE, _DESTROY = "CreateInstance", "DestroyInstance"
_CLEARS = frozenset({"ResetGpu", "SetMigMode"})
_UNDOING = frozenset({"Undone", "Recovered"})


class HistoryPlace(NamedTuple):
    """A stretch of the GPU's grid, with its profile; `size` 0 is the uncut GPU."""

    profile: str
    start: int
    size: int

    def __str__(self) -> str:
        return f"{self.profile} at {self.start}:{self.size}" if self.size else "the whole GPU"


@dataclass(frozen=True, slots=True)
class HistorySpan:
    """The life of a slice, or with an allocation id of a share. Times are seconds since the epoch.

    `began` is None if it began before the records, `ended` is None if it still exists. `holder` is who held the share, in that
    `namespace`; `owned` is whether Tranche made the slice. They are empty where that is not known.
    """

    place: HistoryPlace
    began: float | None
    ended: float | None
    allocation_id: str = ""
    namespace: str = ""
    holder: str = ""
    owned: bool | None = None

    def meets(self, since: float) -> bool:
        """Whether any of the span lies between `since` and now.

        Nothing lies in the future: a future time means that the clock was put back since.
        """
        return self.ended is None or self.ended >= since

    def within(self, since: float, until: float) -> tuple[float, float]:
        """Its begin and end, clipped to a period that it meets; the end is never before the begin."""
        ended = until if self.ended is None else max(since, min(until, self.ended))
        return since if self.began is None else max(since, min(self.began, ended)), ended


def events_by_gpu(events: Sequence[Document]) -> dict[str, list[Document]]:
    """The events about each GPU by UUID: those that name it, those of its shares, and those of plans that changed it."""
    named = [_gpus_named(event) for event in events]
    of_share: dict[str, set[str]] = {}
    of_plan: dict[str, set[str]] = {}
    for event, gpus in zip(events, named, strict=True):
        if event["allocationId"]:
            of_share.setdefault(event["allocationId"], set()).update(gpus)
        if (plan := _plan_of(event)) is not None:
            of_plan.setdefault(plan, set()).update(gpus)
    found: dict[str, list[Document]] = {}
    for event, gpus in zip(events, named, strict=True):
        of_others = of_share.get(event["allocationId"] or "", set()) | of_plan.get(_plan_of(event) or "", set())
        for gpu in gpus | of_others:
            found.setdefault(gpu, []).append(event)
    return found


def slices_over_time(gpu: Document, events: Sequence[Document]) -> list[HistorySpan]:
    """Every slice of the GPU in the events or the document, ordered by begin."""
    known: list[HistorySpan] = []
    there: dict[HistoryPlace, HistorySpan] = {}
    heard: dict[HistoryPlace, float] = {}

    def end(place: HistoryPlace, when: float) -> None:
        if (span := there.pop(place, None)) is not None:
            known.append(replace(span, ended=when))

    undone = {_plan_of(each) for each in events if each["type"] in _UNDOING}
    for event in events:
        when, step = seconds_of(event["time"]), (event["data"] or {}).get("step")
        if step is None or step["gpu"] != gpu["uuid"] or _plan_of(event) in undone:
            heard |= dict.fromkeys(_places(event, gpu["uuid"]), when)
        elif step["action"] in _CLEARS:
            for place in list(there):
                end(place, when)
        elif step["action"] in (_CREATE, _DESTROY):
            place = HistoryPlace(step["profile"], step["start"], step["size"])
            if step["action"] == _DESTROY:
                end(place, when)
            elif place not in there:
                there[place] = HistorySpan(place, when, None)
            heard[place] = when
    present = {place_of(each) for each in gpu["slices"] if each["gpuInstanceId"] is not None}
    for place in list(there.keys() - present):
        end(place, heard[place])
    known += there.values()
    known += [HistorySpan(place, None, None) for place in present - there.keys()]
    return sorted(known, key=lambda span: (span.began or 0.0, span.place))


def shares_over_time(gpu_uuid: str, events: Sequence[Document], allocations: Iterable[Document]) -> list[HistorySpan]:
    """Every share of the GPU in the events or the present allocations, ordered by begin."""
    now = {each["id"]: each for each in allocations}
    ended = {each["allocationId"]: seconds_of(each["time"]) for each in events if each["type"] == "Released"}
    found = []
    granted = set()
    for event in events:
        id, given = event["allocationId"], (event["data"] or {}).get("grants", ())
        if event["type"] == "Granted" and id not in granted:
            granted.add(id)
            # A share that vanished without a release has no known end, so it ends at its only mention.
            end = None if id in now else ended.get(id, seconds_of(event["time"]))
            found += [
                HistorySpan(place_of(each), seconds_of(event["time"]), end, id)
                for each in given
                if each["gpuUUID"] == gpu_uuid
            ]
    for id, allocation in now.items():
        if id not in granted:
            began = seconds_of(allocation["created"])
            grants = (each for each in allocation["grants"] if each["gpuUUID"] == gpu_uuid)
            found += [HistorySpan(place_of(each), began, None, id) for each in grants]
    return sorted(found, key=lambda span: (span.began or 0.0, span.place))


def changed_at(placement: Document | None, spans: Iterable[HistorySpan]) -> float | None:
    """The last begin or end in that stretch of the grid, or anywhere on the GPU; None if unknown."""
    here = [each for each in spans if placement is None or not each.place.size or _meet(placement, each.place)]
    return max((when for each in here for when in (each.began, each.ended) if when is not None), default=None)


def cordoned_at(gpu_uuid: str, events: Iterable[Document]) -> float | None:
    """When the GPU was last cordoned."""
    times = [each["time"] for each in events if each["type"] == "Cordoned" and each["gpuUUID"] == gpu_uuid]
    return seconds_of(times[-1]) if times else None


def _meet(placement: Document, place: HistoryPlace) -> bool:
    start = placement["start"]
    return bool(start < place.start + place.size and place.start < start + placement["size"])


def seconds_of(rfc3339: str) -> float:
    """A document's time as seconds since the epoch."""
    return datetime.datetime.fromisoformat(rfc3339).timestamp()


def _gpus_named(event: Document) -> set[str]:
    data = event["data"] or {}
    named = {event["gpuUUID"], data.get("step", {}).get("gpu"), *(each["gpuUUID"] for each in data.get("grants", ()))}
    return {each for each in named if each}


def _plan_of(event: Document) -> str | None:
    return (event["data"] or {}).get("planId") or None


def _places(event: Document, gpu_uuid: str) -> Iterable[HistoryPlace]:
    return [place_of(each) for each in (event["data"] or {}).get("grants", ()) if each["gpuUUID"] == gpu_uuid]


def place_of(document: Document) -> HistoryPlace:
    """The place of a slice or a grant."""
    if document["placement"] is None:
        return HistoryPlace("", 0, 0)
    return HistoryPlace(document["profile"], document["placement"]["start"], document["placement"]["size"])
