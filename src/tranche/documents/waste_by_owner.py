"""Who held how much over a time, and how much of it is wasted now: by user of the machine, by namespace of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tranche.documents.blocks import IN_NAMESPACES, Document
from tranche.documents.history import events_by_gpu, shares_over_time


class _Owner(NamedTuple):
    kind: str
    name: str


@dataclass(slots=True)
class _Account:
    """Of one owner: his shares, bytes times seconds that he held, bytes that are unused now, and more than is needed."""

    shares: set[str] = field(default_factory=set)
    held: float = 0.0
    unused: int = 0
    spare: int = 0


def waste_by_owner(
    gpus: Sequence[Document],
    events: Sequence[Document],
    allocations: Sequence[Document],
    waste: Document,
    since: float,
    until: float,
) -> list[dict[str, Any]]:
    """Each owner of a share that was held at some time from `since` to `until`, who held most first.

    `waste` is what is wasted now. `owner` is null for shares of which no event that is kept says whose they were.
    """
    owners, grants = _owners(events, allocations), _grants(events, allocations)
    accounts: dict[_Owner | None, _Account] = {}
    by_gpu = events_by_gpu(events)
    for gpu in gpus:
        for span in shares_over_time(gpu["uuid"], by_gpu.get(gpu["uuid"], []), allocations):
            if span.meets(since, until):
                account = accounts.setdefault(owners.get(span.allocation_id), _Account())
                account.shares.add(span.allocation_id)
                began = since if span.began is None else max(since, span.began)
                ended = until if span.ended is None else min(until, span.ended)
                account.held += max(0.0, ended - began) * _amount(gpu, span.place, grants.get(span.allocation_id, ()))
    for each in waste["unused"]:
        parts = {id: _part(each["gpuUUID"], _place(each), grants.get(id, ())) for id in each["allocationIds"]}
        # Of a device that several have in turns each has as much as another.
        in_turns = sum(part is None for part in parts.values())
        rest = (each["memoryBytes"] or 0) - sum(part or 0 for part in parts.values())
        for id, part in parts.items():
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
    """Whose each share is: what its pod or claim says now, else what was said when it was granted."""
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


def _amount(gpu: Document, place: tuple[str, int, int], grants: Iterable[Document]) -> int:
    """Bytes of the GPU that are given away with that place: of a part its own, else the place's share of the grid."""
    part = _part(gpu["uuid"], place, grants)
    if part is not None:
        return part
    units, size = gpu["memorySlices"] or 1, place[2]
    return int(gpu["memoryBytes"] * size / units if size else gpu["memoryBytes"])


def _part(gpu_uuid: str, place: tuple[str, int, int], grants: Iterable[Document]) -> int | None:
    """Bytes of a device that is shared which the grants are; None where they are no part of one."""
    found = (each for each in grants if each["gpuUUID"] == gpu_uuid and "memoryBytes" in each)
    return next((int(each["memoryBytes"]) for each in found if _place(each) == tuple(place)), None)


def _place(each: Document) -> tuple[str, int, int]:
    if each["placement"] is None:
        return "", 0, 0
    return each["profile"], each["placement"]["start"], each["placement"]["size"]
