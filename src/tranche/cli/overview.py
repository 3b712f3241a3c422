"""The picture that `tranche top` draws: totals, problems, waiters, and GPUs as bars of memory slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from tranche.core.allocation import Allocation, FractionalShare, NodeView
from tranche.core.printable import one_line
from tranche.core.quantity import format_memory
from tranche.core.readings import GpuReading
from tranche.core.state import GpuState
from tranche.documents import describe
from tranche.documents.blocks import BlockRow, BlockStatus, blocks_of
from tranche.documents.holder_names import Owners, called, holder_name, names_of, owner_name
from tranche.documents.machine import gpu_document
from tranche.documents.picture import headline, legend
from tranche.documents.reasons import shares_of
from tranche.documents.shares import allocation_document
from tranche.documents.slices import slices_on, whole_holders, why_withheld
from tranche.node.store.records import Waiter

_MARKS = {
    BlockStatus.HELD: ("█", "green"),
    BlockStatus.SHARED: ("▚", "blue"),
    BlockStatus.PREPARING: ("▒", "yellow"),
    BlockStatus.IN_USE: ("▓", "magenta"),
    BlockStatus.IDLE: ("░", "cyan"),
    BlockStatus.FREE: ("·", None),
    BlockStatus.KEPT: ("=", "magenta"),
    BlockStatus.UNUSABLE: ("-", None),
    BlockStatus.CORDONED: ("/", "yellow"),
    BlockStatus.FAULTY: ("!", "red"),
    BlockStatus.MISSING: ("?", "red"),
    BlockStatus.LOST: ("×", "red"),
}
_TROUBLED = frozenset({BlockStatus.LOST, BlockStatus.FAULTY, BlockStatus.CORDONED})
_BORDER = "│"
_CELL = 2
"""The width of a memory slice in characters; the last one of each block is its border."""
_FIRST_WAITERS = 3
"""How many waiters stand above the GPUs."""
_NARROW = 72
"""On a narrower terminal the memory of GPUs is left out, so that their state has room."""
HEAD_LINES = 2
"""The lines at the top that stay: the totals, and what the marks mean."""


@dataclass(frozen=True, slots=True)
class MachinePicture:
    """What is drawn: the machine, who waits and `reasons` of each, the gauges of the GPUs that could be measured, and whose
    shares are. `now` is seconds since the epoch.
    """

    view: NodeView
    queue: Sequence[Waiter]
    reasons: Sequence[str]
    readings: Sequence[GpuReading]
    owners: Owners
    now: float


def overview(seen: MachinePicture, width: int | None = None) -> list[str]:
    """The picture as lines with colour codes, for a terminal of so many columns, or for none."""
    view = seen.view
    allocations = [allocation_document(each, view, seen.owners) for each in view.allocations]
    drawn = blocks_of([gpu_document(view, gpu) for gpu in view.node], allocations)
    gpus, *pieces = headline(drawn).split("; ")
    totals = "; ".join([gpus, *([f"{len(seen.queue)} waiting"] if seen.queue else []), *pieces])
    lines = [click.style(totals, bold=True), _legend(drawn)]
    if trouble := list(_trouble(seen)):
        lines += [*(f"{click.style('!', fg='red')} {one_line(each)}" for each in trouble), ""]
    if seen.queue:
        lines += [*_waiters(seen, 0, _FIRST_WAITERS), ""]
    lines += _gpus(seen, drawn, width)
    if len(seen.queue) > _FIRST_WAITERS:
        lines += ["", *_waiters(seen, _FIRST_WAITERS, len(seen.queue))]
    if view.allocations:
        lines += ["", f"{len(view.allocations)} share{'s' if len(view.allocations) > 1 else ''}"]
        lines += [one_line(f"  {_share(seen, each)}") for each in view.allocations]
    if processes := list(_processes(view)):
        lines += ["", f"{len(processes)} process{'es' if len(processes) > 1 else ''}", *processes]
    return lines


def _legend(drawn: Sequence[BlockRow]) -> str:
    """The marks of the blocks that are there, held and free ones in any case."""
    looks = [
        look
        for look in BlockStatus
        if look in {BlockStatus.HELD, BlockStatus.FREE} | {each for each, _ in legend(drawn)}
    ]
    marks = (f"{click.style(_MARKS[look][0], fg=_MARKS[look][1])} {look}" for look in looks)
    return "  ".join([*marks, "%: busy"])


def _trouble(seen: MachinePicture) -> Iterator[str]:
    """What needs attention: GPUs that serve no requests, shares without limits, and the longest waiter."""
    view, names = seen.view, names_of(seen.view.allocations, (), seen.owners)
    for gpu in view.node:
        if gpu.lost:
            promised = [each.id for each in view.allocations if any(one.gpu_uuid == gpu.uuid for one in each.grants)]
            whose = f"; holders: {shares_of(promised, names)}" if promised else ""
            yield f"{gpu.label} {describe.lost_gpu(gpu)}{whose}"
        elif why := why_withheld(view, gpu):
            yield f"{gpu.label} {why}"
        elif gpu.prohibited or gpu.mode_pending:
            yield f"{gpu.label} {describe.gpu_state(view, gpu, slices_on(view, gpu), whole_holders(view, gpu))}"
    for each in view.allocations:
        if any(isinstance(grant, FractionalShare) and grant.unlimited for grant in each.grants):
            yield f"nothing limits the memory of {holder_name(each, seen.owners)}"
    if seen.queue:
        oldest = min(seen.queue, key=lambda waiter: waiter.created)
        yield f"longest wait: {describe.age(seen.now - oldest.created)}, {_waiter_name(seen, oldest)}"


def _waiters(seen: MachinePicture, first: int, end: int) -> Iterator[str]:
    """That part of the queue, each with what it waits for; what says the same as the one before is not said again."""
    yield "queue, in order of arrival" if not first else "queue, continued"
    before = ""
    for position, waiter in enumerate(seen.queue[first:end], start=first + 1):
        age = describe.age(seen.now - waiter.created)
        yield one_line(f"  {position:>2}. {age:>6}  {waiter.request}  {_waiter_name(seen, waiter)}")
        if (why := seen.reasons[position - 1]) != before:
            yield one_line(f"      {why}")
        before = why


def _waiter_name(seen: MachinePicture, waiter: Waiter) -> str:
    return called(waiter.id, waiter.command, owner_name(seen.owners.get(waiter.id)))


def _gpus(seen: MachinePicture, drawn: Sequence[BlockRow], width: int | None) -> list[str]:
    """A line for each GPU, those that serve no requests first."""
    view = seen.view
    room = max((each.units for each in drawn), default=0) * _CELL + 1
    used = {gpu.uuid: _memory(gpu) for gpu in view.node}
    memory_width = 0 if width is not None and width < _NARROW else max(map(len, used.values()), default=0)
    measured = {each.gpu_uuid: each for each in seen.readings}
    lines: list[tuple[bool, str]] = []
    for gpu, blocks in zip(view.node, drawn, strict=True):
        bar = _bar(blocks) + " " * (room - blocks.units * _CELL - 1)
        memory = f"{used[gpu.uuid]:>{memory_width}}  " if memory_width else ""
        state = describe.gpu_state(view, gpu, slices_on(view, gpu), whole_holders(view, gpu), seen.owners)
        busy = _busy(gpu, measured.get(gpu.uuid))
        line = f"GPU {gpu.index:<2} {bar}  {memory}{busy:>4}  {one_line(state)}"
        lines.append((not any(each.look in _TROUBLED for each in blocks.blocks), line))
    return [line for _, line in sorted(lines, key=lambda each: each[0])]


def _share(seen: MachinePicture, each: Allocation) -> str:
    age = describe.age(seen.now - each.created)
    return f"{age:>6}  {describe.grants(each, seen.view.node)}  {holder_name(each, seen.owners)}"


def _bar(gpu: BlockRow) -> str:
    """Each block with a border behind it, as wide as its stretch of the grid; a part too small for a mark is its border."""
    text, reached = _BORDER, 0
    for each in gpu.blocks:
        end = round((each.start + each.size) * _CELL)
        mark, colour = _MARKS[each.look]
        if end > reached:
            text += click.style(mark * (end - reached - 1), fg=colour) + _BORDER
            reached = end
    return text


def _busy(gpu: GpuState, reading: GpuReading | None) -> str:
    """How much of the time the GPU computed, or in brackets the busiest of its slices; `-` where nothing measures it."""
    if reading is None:
        return "-"
    if not gpu.mig_enabled:
        share = reading.utilization if reading.utilization is not None else reading.activity.graphics
        return "-" if share is None else f"{share:.0%}"
    slices = [each.activity.graphics for each in reading.slices.values()]
    measured = [each for each in slices if each is not None]
    return f"({max(measured):.0%})" if measured else "-"


def _memory(gpu: GpuState) -> str:
    return f"{format_memory(gpu.memory - gpu.memory_free)} of {format_memory(gpu.memory)}" if not gpu.lost else "-"


def _processes(view: NodeView) -> Iterator[str]:
    for gpu in view.node:
        for process in gpu.all_processes:
            memory = "" if process.memory is None else f"  {format_memory(process.memory)}"
            yield f"  GPU {gpu.index:<2} {one_line(str(process))}{memory}"
