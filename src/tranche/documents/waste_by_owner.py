"""How much each owner held over a period, and wastes now: by user of the machine, by Kubernetes namespace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tranche.core.state import NodeState
from tranche.documents.blocks import IN_NAMESPACES, Document
from tranche.documents.history import HistoryPlace, HistorySpan, events_by_gpu, shares_over_time


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
        of_each = {id: _part(each["gpuUUID"], _place(each), grants.get(id, ())) for id in each["allocationIds"]}
        # Holders that take turns on a device count as equal.
        in_turns = sum(part is None for part in of_each.values())
        rest = (each["memoryBytes"] or 0) - sum(part or 0 for part in of_each.values())
        for id, part in of_each.items():
            amount = rest // in_turns if part is None else part
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


def _part(gpu_uuid: str, place: tuple[str, int, int], grants: Iterable[Document]) -> int | None:
    """The bytes of the granted part of a shared device; None if the grants include none."""
    found = (each for each in grants if each["gpuUUID"] == gpu_uuid and "memoryBytes" in each)
    return next((int(each["memoryBytes"]) for each in found if _place(each) == tuple(place)), None)


def _place(each: Document) -> tuple[str, int, int]:
    if each["placement"] is None:
        return "", 0, 0
    return each["profile"], each["placement"]["start"], each["placement"]["size"]
