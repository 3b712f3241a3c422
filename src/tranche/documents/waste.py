"""Waste, now and over a period: held but unused, larger than needed, or cut but held by no one; and each owner's part in it.

Owners are users of the machine, or Kubernetes namespaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tranche.core.state import NodeState
from tranche.documents.blocks import IN_NAMESPACES, Document
from tranche.documents.history import (
    HistoryPlace,
    HistorySpan,
    events_by_gpu,
    place_of,
    shares_over_time,
    slices_over_time,
)


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


class _Owner(NamedTuple):
    kind: str
    name: str


@dataclass(slots=True)
class _Account:
    """One owner's shares, bytes times seconds held, bytes unused now, and bytes beyond need."""

    shares: set[str] = field(default_factory=set)
    held: float = 0.0
    unused: int = 0
    spare: int = 0


def waste_by_owner(
    node: NodeState,
    gpus: Sequence[Document],
    events: Sequence[Document],
    allocations: Sequence[Document],
    waste: Document,
    since: float,
    until: float,
) -> list[dict[str, Any]]:
    """Each owner of a share held at some time from `since` to `until`, largest holder first.

    `waste` is the present waste. `owner` is null for shares without an owner in the kept events. A slice that is gone counts with
    its profile's present memory.
    """
    owners, grants = _owners(events, allocations), _grants(events, allocations)
    accounts: dict[_Owner | None, _Account] = {}
    by_gpu = events_by_gpu(events)
    for gpu in gpus:
        known = shares_over_time(gpu["uuid"], by_gpu.get(gpu["uuid"], []), allocations)
        for place, spans in _by_place(each for each in known if each.meets(since)).items():
            of_them = [grants.get(each.allocation_id, ()) for each in spans]
            parts = [_part(gpu["uuid"], place, each) for each in of_them]
            stretches = [each.within(since, until) for each in spans]
            alone = _seconds_alone([each for each, part in zip(stretches, parts, strict=True) if part is None])
            for span, part, (began, ended) in zip(spans, parts, stretches, strict=True):
                account = accounts.setdefault(owners.get(span.allocation_id), _Account())
                account.shares.add(span.allocation_id)
                account.held += _memory(node, gpu, place) * next(alone) if part is None else part * (ended - began)
    for each in waste["unused"]:
        ids = each["allocationIds"]
        parts = [_part(each["gpuUUID"], place_of(each), grants.get(id, ())) for id in ids]
        for id, amount in zip(ids, _amounts(each["memoryBytes"] or 0, parts), strict=True):
            accounts.setdefault(owners.get(id), _Account(shares={id})).unused += amount
    for each in waste["tooLarge"]:
        (id,) = each["allocationIds"]
        spare = (each["memoryBytes"] or 0) - each["enough"]["memoryBytes"]
        accounts.setdefault(owners.get(id), _Account(shares={id})).spare += spare
    most_first = sorted(accounts.items(), key=lambda pair: (-pair[1].held, pair[0] or _Owner("", "")))
    return [
        {
            "owner": None if owner is None else {"kind": owner.kind, "name": owner.name},
            "shares": len(account.shares),
            "heldByteSeconds": round(account.held),
            "unusedBytes": account.unused,
            "spareBytes": account.spare,
        }
        for owner, account in most_first
    ]


def _owners(events: Iterable[Document], allocations: Iterable[Document]) -> Mapping[str, _Owner]:
    """The owner of each share: what its pod or claim says now, or else its grant event."""
    found = {}
    for event in events:
        if event["type"] == "Granted" and (owner := (event["data"] or {}).get("owner")):
            found[event["allocationId"]] = _Owner(owner["kind"], owner["name"])
    for each in allocations:
        keeper = each["keeper"]
        if keeper["kind"] in IN_NAMESPACES and keeper["namespace"]:
            found[each["id"]] = _Owner("namespace", keeper["namespace"])
    return found


def _grants(events: Iterable[Document], allocations: Iterable[Document]) -> Mapping[str, Sequence[Document]]:
    told = {
        each["allocationId"]: each["data"]["grants"] for each in events if each["type"] == "Granted" and each["data"]
    }
    return told | {each["id"]: each["grants"] for each in allocations}


def _by_place(spans: Iterable[HistorySpan]) -> Mapping[HistoryPlace, Sequence[HistorySpan]]:
    found: dict[HistoryPlace, list[HistorySpan]] = {}
    for each in spans:
        found.setdefault(each.place, []).append(each)
    return found


def _seconds_alone(stretches: Sequence[tuple[float, float]]) -> Iterator[float]:
    """The seconds of each stretch of one device's time; simultaneous stretches split them evenly."""
    found = [0.0] * len(stretches)
    some = [(n, began, ended) for n, (began, ended) in enumerate(stretches) if began < ended]
    turns = [(began, 1, n) for n, began, _ in some] + [(ended, 0, n) for n, _, ended in some]
    there: set[int] = set()
    reached = 0.0
    for when, begins, n in sorted(turns):
        for each in there:
            found[each] += (when - reached) / len(there)
        reached = when
        (there.add if begins else there.remove)(n)
    return iter(found)


def _memory(node: NodeState, gpu: Document, place: HistoryPlace) -> int:
    """Bytes of the device at that place: its profile's, or else the place's share of the grid."""
    if not place.size:
        return int(gpu["memoryBytes"])
    profiles = node.gpu(gpu["uuid"]).profiles
    known = next((each.memory for each in profiles if each.memory and str(each.name) == place.profile), None)
    return known or int(gpu["memoryBytes"] * place.size / (gpu["memorySlices"] or 1))


def _part(gpu_uuid: str, place: HistoryPlace, grants: Iterable[Document]) -> int | None:
    """The bytes of the granted part of a shared device; None if the grants include none."""
    found = (each for each in grants if each["gpuUUID"] == gpu_uuid and "memoryBytes" in each)
    return next((int(each["memoryBytes"]) for each in found if place_of(each) == place), None)


def _amounts(memory: int, parts: Sequence[int | None]) -> list[int]:
    """The bytes of each holder of a device. Those without a part of their own take turns on the rest, and count as equal."""
    in_turns = sum(part is None for part in parts)
    rest = memory - sum(part or 0 for part in parts)
    return [rest // in_turns if part is None else part for part in parts]


class _HeldShare(NamedTuple):
    """`memory` bytes of a GPU or slice that a share holds; `used` means that the device has a process."""

    allocation_id: str
    gpu: Document
    device: Document
    memory: int
    used: bool


def held_now(gpus: Sequence[Document], allocations: Sequence[Document]) -> Iterator[_HeldShare]:
    """What the active allocations of an Overview hold."""
    active = {each["id"]: each for each in allocations if each["phase"] == "active"}
    for gpu in gpus:
        for device in (gpu, *gpu["slices"]):
            holders = [active[id] for id in device["allocationIds"] if id in active]
            place = HistoryPlace("", 0, 0) if device is gpu else place_of(device)
            parts = [_part(gpu["uuid"], place, each["grants"]) for each in holders]
            for each, memory in zip(holders, _amounts(device["memoryBytes"] or 0, parts), strict=True):
                yield _HeldShare(each["id"], gpu, device, memory, bool(device["processes"]))
