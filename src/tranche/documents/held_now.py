"""The bytes that each share holds now, and whether any process uses them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tranche.documents.blocks import Document


class _HeldShare(NamedTuple):
    """`memory` bytes of a GPU or slice that a share holds; `used` means that the device has a process."""

    allocation_id: str
    gpu: Document
    device: Document
    memory: int
    used: bool


def held_now(gpus: Sequence[Document], allocations: Sequence[Document]) -> Iterator[_HeldShare]:
    """What the active allocations of an Overview hold. Holders that take turns on a device count as equal."""
    active = {each["id"]: each for each in allocations if each["phase"] == "active"}
    for gpu in gpus:
        for device in (gpu, *gpu["slices"]):
            holders = [active[id] for id in device["allocationIds"] if id in active]
            parts = [_part(each, gpu["uuid"], device) for each in holders]
            rest = (device["memoryBytes"] or 0) - sum(part or 0 for part in parts)
            in_turns = sum(part is None for part in parts)
            for each, part in zip(holders, parts, strict=True):
                memory = rest // in_turns if part is None else part
                yield _HeldShare(each["id"], gpu, device, memory, bool(device["processes"]))


def _part(allocation: Document, gpu_uuid: str, device: Document) -> int | None:
    """The bytes of a part of a shared device; None if the allocation holds it otherwise."""
    place = device.get("placement")
    found = (each for each in allocation["grants"] if each["gpuUUID"] == gpu_uuid and each["placement"] == place)
    return next((int(each["memoryBytes"]) for each in found if "memoryBytes" in each), None)
