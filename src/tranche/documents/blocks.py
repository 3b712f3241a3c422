"""What a picture of a GPU shows: blocks side by side in the order of their placement, made of the JSON documents alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tranche.core.quantity import format_memory

Document = Mapping[str, Any]

_UNCUT = 8
"""The units of a GPU that has no grid."""

IN_NAMESPACES = {"pod": "pod", "claim": "claim", "placed-pod": "pod"}
"""The kinds of keepers that have a namespace of Kubernetes and a name in it, each with its word for people."""


class Look(StrEnum):
    """How a block is drawn; the value is its name in the legend."""

    HELD = "held"
    SHARED = "shared"
    PREPARING = "preparing"
    IN_USE = "in use by others"
    IDLE = "idle"
    FREE = "free"
    MISSING = "missing"
    LOST = "lost"


_SLICE_LOOKS = {
    "held": Look.HELD,
    "preparing": Look.PREPARING,
    "missing": Look.MISSING,
    "in use": Look.IN_USE,
    "idle": Look.IDLE,
}


@dataclass(frozen=True, slots=True)
class BarBlock:
    """A stretch of a GPU: `start` and `size` in units of its grid. `name` is what it is, `who` in short who has it.

    `told` says all of that in a sentence. `foreign`: Tranche did not make it.
    """

    start: float
    size: float
    look: Look
    name: str
    who: str
    told: str
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class GpuBlocks:
    """A GPU of so many units, with its blocks from left to right; `model` also says why nothing more of it is given away."""

    uuid: str
    label: str
    model: str
    memory: int
    units: int
    changing: bool
    blocks: tuple[BarBlock, ...]

    @property
    def told(self) -> str:
        """The GPU and all its blocks in words."""
        memory = format_memory(self.memory) if self.memory else ""
        head = ", ".join(filter(None, (self.label, self.model, memory, "being changed" if self.changing else "")))
        return f"{head}: {'; '.join(each.told for each in self.blocks)}."


def blocks_of(gpus: Sequence[Document], allocations: Sequence[Document]) -> tuple[GpuBlocks, ...]:
    """The GPUs of a GpuList or an Overview; without allocations, holders are known by their ids alone."""
    known = {each["id"]: each for each in allocations}
    return tuple(_gpu_blocks(gpu, known) for gpu in gpus)


def _gpu_blocks(gpu: Document, known: Mapping[str, Document]) -> GpuBlocks:
    units = int(gpu["memorySlices"]) or _UNCUT
    model = str(gpu["name"]).removeprefix("NVIDIA ").strip()
    withheld = gpu.get("withheld")
    return GpuBlocks(
        gpu["uuid"],
        f"GPU {gpu['index']}",
        f"{withheld}; {model}" if withheld else model,
        gpu["memoryBytes"],
        units,
        bool(gpu["changing"]),
        tuple(_blocks(gpu, units, known)),
    )


def _blocks(gpu: Document, units: int, known: Mapping[str, Document]) -> Iterator[BarBlock]:
    if gpu["lost"]:
        yield BarBlock(0, units, Look.LOST, "lost", "", "the driver has lost it")
    elif gpu["allocationIds"]:
        yield from _device(gpu, 0, units, "whole", Look.HELD, known, gpu["uuid"], None)
    elif gpu["slices"] or gpu["mig"]["mode"] == "enabled":
        yield from _cut(gpu, units, known)
    elif gpu["processes"]:
        running = ", ".join(_processes(gpu))
        yield BarBlock(0, units, Look.IN_USE, "in use", running, f"in use by {running}")
    else:
        yield BarBlock(0, units, Look.FREE, "", "free", "free")


def _cut(gpu: Document, units: int, known: Mapping[str, Document]) -> Iterator[BarBlock]:
    reached = 0
    for each in gpu["slices"]:
        start, size = each["placement"]["start"], each["placement"]["size"]
        if start > reached:
            yield _gap(reached, start - reached)
        yield from _device(each, start, size, each["profile"], _SLICE_LOOKS[each["state"]], known, gpu["uuid"], each)
        reached = max(reached, start + size)
    if reached < units:
        yield _gap(reached, units - reached)


def _gap(start: int, size: int) -> BarBlock:
    return BarBlock(
        start, size, Look.FREE, "", "free", f"{size} memory slice{'s' if size > 1 else ''} free from {start}"
    )


def _device(
    device: Document,
    start: float,
    size: float,
    name: str,
    look: Look,
    known: Mapping[str, Document],
    gpu_uuid: str,
    placed: Document | None,
) -> Iterator[BarBlock]:
    """A slice or an uncut GPU: one block, or where several share it one for each part and one for what is left."""
    where = name if placed is None else f"{name} at {placed['placement']['start']}:{placed['placement']['size']}"
    foreign = placed is not None and placed["owned"] is False and look is not Look.MISSING
    made = ", not made by Tranche" if foreign else ""
    parts = _parts(device, known, gpu_uuid, placed)
    total = device["memoryBytes"]
    if look is Look.HELD and device["sharing"] is not None and parts and total:
        reached = 0.0
        scale = size / max(total, sum(memory for _, memory in parts))
        for holder, memory in parts:
            amount = format_memory(memory)
            told = f"{amount} of {where} held by {told_holder(holder)}{made}"
            yield BarBlock(start + reached, memory * scale, Look.SHARED, amount, short_holder(holder), told, foreign)
            reached += memory * scale
        if (left := size - reached) > size / 1000:
            sharing = device["sharing"]
            why = f"nobody more is let in: {sharing['fenced']}" if sharing["fenced"] else ""
            given = format_memory(sharing["memoryLeftBytes"]) + " left"
            yield BarBlock(start + reached, left, Look.FREE, "", why or given, f"{why or given} of {where}")
        return
    holders = [known.get(each, {"id": each}) for each in device["allocationIds"]]
    names = ", ".join(map(told_holder, holders))
    said = {
        Look.HELD: f"held by {names}" if names else "held",
        Look.PREPARING: f"being prepared for {names}",
        Look.MISSING: f"missing, promised to {names}",
        Look.IN_USE: f"in use by {', '.join(_processes(device)) or 'a process outside Tranche'}",
    }.get(look, str(look))
    who = ", ".join(map(short_holder, holders)) or ", ".join(_processes(device)) or str(look)
    yield BarBlock(start, size, look, name, who, f"{where} {said}{made}", foreign)


def _parts(
    device: Document, known: Mapping[str, Document], gpu_uuid: str, placed: Document | None
) -> list[tuple[Document, int]]:
    """Who has how many bytes of the device."""
    place = None if placed is None else placed["placement"]
    return [
        (known[each], grant["memoryBytes"])
        for each in device["allocationIds"]
        if each in known
        for grant in known[each]["grants"]
        if grant["gpuUUID"] == gpu_uuid and grant["placement"] == place and "memoryBytes" in grant
    ]


def _processes(device: Document) -> list[str]:
    return [_process(each) for each in device["processes"]]


def _process(each: Document) -> str:
    return f"{each['name']} ({each['pid']})"


def short_holder(allocation: Document) -> str:
    """Whoever has an allocation: its id and command, or namespace and name of its pod or claim."""
    keeper = allocation.get("keeper", {})
    if keeper.get("kind") in IN_NAMESPACES:
        return f"{keeper['namespace']}/{keeper['name']}" if keeper["name"] else "a pod that is being admitted"
    return f"{allocation['id']} {allocation.get('command', '')}".rstrip()


def told_holder(allocation: Document) -> str:
    """The same in a sentence."""
    keeper = allocation.get("keeper", {})
    named = keeper.get("kind") in IN_NAMESPACES and keeper["name"]
    return f"{IN_NAMESPACES[keeper['kind']]} {short_holder(allocation)}" if named else short_holder(allocation)
