"""Waste, now and over a period: held but unused, larger than needed, or cut but held by no one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tranche.core.state import NodeState
from tranche.documents.blocks import Document
from tranche.documents.history import HistorySpan, events_by_gpu, shares_over_time, slices_over_time


class _Device(NamedTuple):
    """A slice or an uncut GPU; `used` is None if not measured."""

    gpu: Document
    piece: Document | None
    used: int | None

    @property
    def document(self) -> Document:
        return self.gpu if self.piece is None else self.piece

    @property
    def held(self) -> int | None:
        """The granted bytes of its memory: all of it, or the parts."""
        sharing = self.document["sharing"]
        memory: int | None = self.document["memoryBytes"] if sharing is None else sharing["memoryGivenBytes"]
        return memory

    @property
    def where(self) -> dict[str, Any]:
        return {
            "gpuIndex": self.gpu["index"],
            "gpuUUID": self.gpu["uuid"],
            "profile": None if self.piece is None else self.piece["profile"],
            "placement": None if self.piece is None else self.piece["placement"],
            "memoryBytes": self.document["memoryBytes"],
        }


def waste_data(
    node: NodeState, gpus: Sequence[Document], readings: Sequence[Document], allocations: Sequence[Document]
) -> dict[str, Any]:
    """The present waste on the GPUs of an Overview.

    `unused`: held without any process; `memoryBytes` is the granted amount. `tooLarge`: a single share holds it, and its
    processes' memory would fit a smaller profile of the same GPU, `enough`. `idle`: slices without a holder or a process.
    """
    devices = list(_devices(gpus, readings))
    active = {each["id"]: each for each in allocations if each["phase"] == "active"}
    held = [(each, ids) for each in devices if (ids := [id for id in each.document["allocationIds"] if id in active])]
    unused = [
        {**each.where, "memoryBytes": each.held, "allocationIds": ids}
        for each, ids in held
        if not each.document["processes"]
    ]
    too_large = [
        {**each.where, "allocationIds": ids, "memoryUsedBytes": each.used, "enough": enough}
        for each, ids in held
        if each.document["processes"] and len(ids) == 1 and (enough := _smaller(node, each)) is not None
    ]
    idle = [
        {**each.where, "owned": each.document["owned"]}
        for each in devices
        if each.piece and each.piece["state"] == "idle"
    ]
    return {"unused": unused, "tooLarge": too_large, "idle": idle}


def use_over_time(
    gpus: Sequence[Document], events: Sequence[Document], allocations: Sequence[Document], since: float, until: float
) -> list[dict[str, Any]]:
    """How much of each GPU was held, at least in part, and how much Tranche had cut without a holder.

    Both are shares from 0 to 1 of its grid and of the time from `since` to `until`. A slice with an unknown begin counts only
    while held.
    """
    found, by_gpu = [], events_by_gpu(events)
    for gpu in gpus:
        units = gpu["memorySlices"] or 1
        of_it = by_gpu.get(gpu["uuid"], [])
        shares = shares_over_time(gpu["uuid"], of_it, allocations)
        cut = slices_over_time(gpu, of_it)
        room = units * (until - since)
        held = _area(shares, units, since, until) / room
        either = _area([*shares, *(each for each in cut if each.began is not None)], units, since, until) / room
        found.append({"gpuIndex": gpu["index"], "gpuUUID": gpu["uuid"], "held": held, "idle": either - held})
    return found


def _devices(gpus: Iterable[Document], readings: Sequence[Document]) -> Iterator[_Device]:
    measured = {each["gpuUUID"]: each for each in readings}
    for gpu in gpus:
        reading: Mapping[str, Any] = measured.get(gpu["uuid"], {"memoryUsedBytes": None, "slices": []})
        inside = {each["gpuInstanceId"]: each["memoryUsedBytes"] for each in reading["slices"]}
        if not gpu["lost"]:
            yield _Device(gpu, None, reading["memoryUsedBytes"])
            for piece in gpu["slices"]:
                if piece["gpuInstanceId"] is not None:
                    yield _Device(gpu, piece, inside.get(piece["gpuInstanceId"]))


def _smaller(node: NodeState, device: _Device) -> dict[str, Any] | None:
    """The smallest plain profile with room for what the device uses; None if none is smaller."""
    gpu = node.gpu(device.gpu["uuid"])
    size = device.document["memoryBytes"]
    plain = [each for each in gpu.profiles if each.memory and each.starts and not each.name.has_attributes]
    fitting = [each for each in plain if device.used is not None and device.used <= (each.memory or 0) < (size or 0)]
    found = min(fitting, key=lambda each: (each.memory or 0, each.slices), default=None)
    return None if found is None else {"profile": str(found.name), "memoryBytes": found.memory}


def _area(spans: Iterable[HistorySpan], units: int, since: float, until: float) -> float:
    """The area that the spans cover, in grid units times seconds."""
    by_unit: dict[int, list[tuple[float, float]]] = {}
    for span in spans:
        began, ended = span.within(since, until)
        whole = range(units) if span.place.size == 0 else range(span.place.start, span.place.start + span.place.size)
        if began < ended:
            for unit in whole:
                by_unit.setdefault(unit, []).append((began, ended))
    return sum(_covered(stretches) for stretches in by_unit.values())


def _covered(stretches: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for began, ended in sorted(stretches):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total
