"""The picture of a GPU as data: blocks side by side in order of placement, from the JSON documents alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tranche.core.quantity import format_memory
from tranche.documents.holder_names import name_and_user

Document = Mapping[str, Any]

_UNCUT = 8
"""The units of a GPU without a grid."""

IN_NAMESPACES = {"pod": "pod", "claim": "claim", "placed-pod": "pod"}
"""The kinds of keepers with a Kubernetes namespace and name, each with its word for people."""


class BlockStatus(StrEnum):
    """How a block is drawn; the value is its name in the legend."""

    HELD = "held"
    SHARED = "shared"
    PREPARING = "preparing"
    IN_USE = "in use by others"
    IDLE = "idle"
    FREE = "free"
    KEPT = "kept for others"
    UNUSABLE = "unusable"
    CORDONED = "cordoned"
    FAULTY = "faulty"
    MISSING = "missing"
    LOST = "lost"


class BlockKind(StrEnum):
    """What a block stands for: the uncut GPU, a slice, a part of a shared device, or empty room."""

    GPU = "GPU"
    SLICE = "slice"
    PART = "part"
    ROOM = "room"


_VACANT_LOOKS = {
    "free": BlockStatus.FREE,
    "kept": BlockStatus.KEPT,
    "unusable": BlockStatus.UNUSABLE,
    "cordoned": BlockStatus.CORDONED,
    "faulty": BlockStatus.FAULTY,
}
"""By state of the vacancy; room in an unknown state is not free."""

_SLICE_LOOKS = {
    "held": BlockStatus.HELD,
    "preparing": BlockStatus.PREPARING,
    "missing": BlockStatus.MISSING,
    "in use": BlockStatus.IN_USE,
    "idle": BlockStatus.IDLE,
}


@dataclass(frozen=True, slots=True)
class BarBlock:
    """A stretch of a GPU: `start` and `size` in units of its grid. `name` is what it is, `who` its holders in short.

    `told` is the whole sentence. `foreign`: Tranche did not make it. `shorter` are shorter versions of `who`: without ids, and
    the users alone. `holders` are the ids of the allocations that hold it.
    """

    start: float
    size: float
    look: BlockStatus
    name: str
    who: str
    told: str
    foreign: bool = False
    piece: BlockKind = BlockKind.ROOM
    shorter: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A GPU of so many units, with its blocks from left to right; `model` also says why the GPU is withheld or reserved."""

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


def blocks_of(gpus: Sequence[Document], allocations: Sequence[Document]) -> tuple[BlockRow, ...]:
    """The GPUs of a GpuList or an Overview; without allocations, holders are known only by their ids."""
    known = {each["id"]: each for each in allocations}
    return tuple(_gpu_blocks(gpu, known) for gpu in gpus)


def _gpu_blocks(gpu: Document, known: Mapping[str, Document]) -> BlockRow:
    units = int(gpu["memorySlices"]) or _UNCUT
    model = str(gpu["name"]).removeprefix("NVIDIA ").strip()
    closed = [gpu[word] for word in ("withheld", "reserved") if gpu.get(word)]
    return BlockRow(
        gpu["uuid"],
        f"GPU {gpu['index']}",
        "; ".join((*closed, model)),
        gpu["memoryBytes"],
        units,
        bool(gpu["changing"]),
        tuple(_blocks(gpu, units, known)),
    )


def _blocks(gpu: Document, units: int, known: Mapping[str, Document]) -> Iterator[BarBlock]:
    vacant = {_spot(each["placement"]): each for each in gpu["vacant"]}
    if gpu["lost"]:
        yield _lost(gpu, units, known)
    elif gpu["allocationIds"]:
        yield from _device(gpu, 0, units, "whole", BlockStatus.HELD, known, gpu["uuid"], None, vacant.get(None))
    elif gpu["slices"] or gpu["mig"]["mode"] == "enabled":
        yield from _cut(gpu, units, known, vacant)
    elif gpu["processes"]:
        running = ", ".join(_processes(gpu))
        yield BarBlock(0, units, BlockStatus.IN_USE, "in use", running, f"in use by {running}", piece=BlockKind.GPU)
    else:
        yield _room(0, units, "", vacant.get(None))


def _lost(gpu: Document, units: int, known: Mapping[str, Document]) -> BarBlock:
    ids = dict.fromkeys(id for device in (gpu, *gpu["slices"]) for id in device["allocationIds"])
    holders = [known.get(each, {"id": each}) for each in ids]
    promised = f", and it is promised to {', '.join(map(told_holder, holders))}" if holders else ""
    told = f"the driver has lost it{promised}"
    who = ", ".join(map(short_holder, holders))
    drawn = BarBlock(0, units, BlockStatus.LOST, "lost", who, told, piece=BlockKind.GPU)
    return replace(drawn, shorter=_shorter(holders), holders=tuple(ids))


def _cut(
    gpu: Document, units: int, known: Mapping[str, Document], vacant: Mapping[tuple[int, int] | None, Document]
) -> Iterator[BarBlock]:
    reached = 0
    for each in gpu["slices"]:
        start, size = each["placement"]["start"], each["placement"]["size"]
        yield from _gap(reached, start, vacant)
        idle = vacant.get((start, size))
        look = _SLICE_LOOKS[each["state"]]
        yield from _device(each, start, size, each["profile"], look, known, gpu["uuid"], each, idle)
        reached = max(reached, start + size)
    yield from _gap(reached, units, vacant)


def _gap(start: int, end: int, vacant: Mapping[tuple[int, int] | None, Document]) -> Iterator[BarBlock]:
    """The room between two slices, by vacancy."""
    while start < end:
        here = next((spot for spot in vacant if spot is not None and spot[0] == start), None)
        reached = end if here is None else min(end, start + here[1])
        size = reached - start
        where = f"{size} memory slice{'s' if size > 1 else ''} from {start}"
        yield _room(start, size, where, vacant.get(here) if here is not None else None)
        start = reached


def _room(start: float, size: float, where: str, vacancy: Document | None) -> BarBlock:
    look = BlockStatus.UNUSABLE if vacancy is None else _VACANT_LOOKS[vacancy["state"]]
    word = str(look if vacancy is None else vacancy["state"])
    return BarBlock(start, size, look, "", word, " ".join(filter(None, (where, _told_vacancy(vacancy) or word))))


def _told_vacancy(vacancy: Document | None) -> str:
    """Whether a request could get it, or else why not: `free`, `cordoned by root: its fan`, `unusable: ...`."""
    if vacancy is None:
        return ""
    state, why = vacancy["state"], vacancy["why"]
    return state if not why else why if why.startswith(state) else f"{state}: {why}"


def _spot(placement: Document | None) -> tuple[int, int] | None:
    return None if placement is None else (placement["start"], placement["size"])


def _device(
    device: Document,
    start: float,
    size: float,
    name: str,
    look: BlockStatus,
    known: Mapping[str, Document],
    gpu_uuid: str,
    placed: Document | None,
    vacancy: Document | None,
) -> Iterator[BarBlock]:
    """A slice or an uncut GPU: one block, or if shared, one for each part and one for the rest.

    `vacancy` says whether a request could get it, or the rest of it.
    """
    where = name if placed is None else f"{name} at {placed['placement']['start']}:{placed['placement']['size']}"
    foreign = placed is not None and placed["owned"] is False
    made = ", not made by Tranche" if foreign else ""
    parts = _parts(device, known, gpu_uuid, placed)
    total = device["memoryBytes"]
    if look is BlockStatus.HELD and device["sharing"] is not None and parts and total:
        reached = 0.0
        scale = size / max(total, sum(memory for _, memory in parts))
        for holder, memory in parts:
            amount = format_memory(memory)
            told = f"{amount} of {where} held by {told_holder(holder)}{made}"
            at, who = start + reached, short_holder(holder)
            drawn = BarBlock(at, memory * scale, BlockStatus.SHARED, amount, who, told, foreign, BlockKind.PART)
            yield replace(drawn, shorter=_shorter([holder]), holders=(holder["id"],))
            reached += memory * scale
        if (left := size - reached) > size / 1000:
            rest = _room(start + reached, left, f"the rest of {where}", vacancy)
            if rest.look is BlockStatus.FREE:
                given = format_memory(device["sharing"]["memoryLeftBytes"]) + " left"
                rest = replace(rest, who=given, told=f"{given} of {where}")
            yield rest
        return
    holders = [known.get(each, {"id": each}) for each in device["allocationIds"]]
    names = ", ".join(map(told_holder, holders))
    said = {
        BlockStatus.HELD: f"held by {names}" if names else "held",
        BlockStatus.PREPARING: f"being prepared for {names}",
        BlockStatus.MISSING: f"missing, promised to {names}",
        BlockStatus.IN_USE: f"in use by {', '.join(_processes(device)) or 'a process outside Tranche'}",
    }.get(look, str(look))
    who = ", ".join(map(short_holder, holders)) or ", ".join(_processes(device)) or str(look)
    if look is BlockStatus.IDLE and vacancy is not None and vacancy["state"] != "free":
        look, who = _VACANT_LOOKS[vacancy["state"]], f"idle, {vacancy['state']}"
        said = f"idle, {_told_vacancy(vacancy)}"
    piece = BlockKind.GPU if placed is None else BlockKind.SLICE
    drawn = BarBlock(start, size, look, name, who, f"{where} {said}{made}", foreign, piece)
    yield replace(drawn, shorter=_shorter(holders), holders=tuple(each["id"] for each in holders))


def _parts(
    device: Document, known: Mapping[str, Document], gpu_uuid: str, placed: Document | None
) -> list[tuple[Document, int]]:
    """Each holder with its bytes of the device."""
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


def _shorter(holders: Sequence[Document]) -> tuple[str, ...]:
    """The holders without ids, and the users alone, each once; omits a text that would leave out a holder."""
    texts = ([_short(each) for each in holders], list(dict.fromkeys(map(whose, holders))))
    return tuple(", ".join(each) for each in texts if each and all(each))


def whose(allocation: Document) -> str:
    """The user or namespace that owns an allocation; "" if unknown."""
    if _in_namespace(allocation):
        return str(allocation["keeper"]["namespace"])
    owner = allocation.get("owner")
    return str(owner["name"]) if owner else ""


def short_holder(allocation: Document) -> str:
    """The holder of an allocation: its command, user and id, or the namespace and name of its pod or claim."""
    return _short(allocation) if _in_namespace(allocation) else f"{_short(allocation)} {allocation['id']}".strip()


def told_holder(allocation: Document) -> str:
    """The holder for a sentence."""
    return f"{_kind(allocation)}{short_holder(allocation)}"


def holder_without_id(allocation: Document) -> str:
    """The holder where the id is shown anyway: `python train.py (ada)`, `pod team-a/train-0`; "" if unknown."""
    return f"{_kind(allocation)}{_short(allocation)}"


def holder_without_user(allocation: Document) -> str:
    """The holder where the user is shown anyway: `python train.py`."""
    return f"{_kind(allocation)}{_short(allocation, '')}"


def _short(allocation: Document, user: str | None = None) -> str:
    if _in_namespace(allocation):
        keeper = allocation["keeper"]
        return f"{keeper['namespace']}/{keeper['name']}" if keeper["name"] else "a pod that is being admitted"
    return name_and_user(allocation.get("command", ""), whose(allocation) if user is None else user)


def _kind(allocation: Document) -> str:
    named = _in_namespace(allocation) and allocation["keeper"]["name"]
    return f"{IN_NAMESPACES[allocation['keeper']['kind']]} " if named else ""


def _in_namespace(allocation: Document) -> bool:
    return allocation.get("keeper", {}).get("kind") in IN_NAMESPACES
