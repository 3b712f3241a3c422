"""The picture that `tranche top` draws: GPUs as bars of memory slices, what they serve, and who waits, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from tranche.core.allocation import NodeView
from tranche.core.printable import one_line
from tranche.core.quantity import format_memory
from tranche.core.readings import GpuReading
from tranche.core.state import GpuState
from tranche.documents import describe
from tranche.documents.blocks import GpuBlocks, Look, blocks_of
from tranche.documents.machine import gpu_document
from tranche.documents.shares import allocation_document
from tranche.documents.slices import slices_on, whole_holders
from tranche.node.records import Waiter

_MARKS = {
    Look.HELD: ("█", "green"),
    Look.SHARED: ("▚", "blue"),
    Look.PREPARING: ("▒", "yellow"),
    Look.IN_USE: ("▓", "magenta"),
    Look.IDLE: ("░", "cyan"),
    Look.FREE: ("·", None),
    Look.KEPT: ("=", "magenta"),
    Look.UNUSABLE: ("-", None),
    Look.CORDONED: ("/", "yellow"),
    Look.FAULTY: ("!", "red"),
    Look.MISSING: ("?", "red"),
    Look.LOST: ("×", "red"),
}
_IN_THE_LEGEND = (Look.HELD, Look.SHARED, Look.PREPARING, Look.IN_USE, Look.IDLE, Look.FREE)
_BORDER = "│"
_CELL = 2
"""The width of a memory slice in characters; the last one of each block is its border."""
LEGEND_LINES = 2
"""The lines at the top that say what the marks mean."""


def overview(
    view: NodeView, queue: Sequence[Waiter], reasons: Sequence[str], readings: Sequence[GpuReading], now: float
) -> list[str]:
    """The picture as lines with colour codes; `now` is seconds since the epoch.

    `reasons` say of each waiter what it waits for; `readings` are those of the GPUs that could be measured.
    """
    lines = [_legend(), ""]
    allocations = [allocation_document(each, view) for each in view.allocations]
    drawn = blocks_of([gpu_document(view, gpu) for gpu in view.node], allocations)
    width = max((each.units for each in drawn), default=0) * _CELL + 1
    used = {gpu.uuid: _memory(gpu) for gpu in view.node}
    memory_width = max((len(text) for text in used.values()), default=0)
    measured = {each.gpu_uuid: each for each in readings}
    for gpu, blocks in zip(view.node, drawn, strict=True):
        bar = _bar(blocks) + " " * (width - blocks.units * _CELL - 1)
        state = describe.gpu_state(view, gpu, slices_on(view, gpu), whole_holders(view, gpu))
        busy = _busy(gpu, measured.get(gpu.uuid))
        lines.append(f"GPU {gpu.index:<2} {bar}  {used[gpu.uuid]:>{memory_width}}  {busy:>4}  {one_line(state)}")
        lines += [f"       {line}" for line in _process_lines(gpu)]
    lines += ["", f"{len(view.allocations)} allocations, {len(queue)} waiting"]
    for each in view.allocations:
        what = f"{each.id}  {describe.age(now - each.created):>6}  {describe.grants(each, view.node)}"
        lines.append(one_line(f"  {what}  {each.command}".rstrip()))
    for position, (waiter, why) in enumerate(zip(queue, reasons, strict=True), start=1):
        what = f"{waiter.id}  {describe.age(now - waiter.created):>6}  {waiter.request}"
        lines.append(one_line(f"  {position}. {what}  {waiter.command}".rstrip()))
        lines.append(f"     {one_line(why)}")
    return lines


def _legend() -> str:
    marks = (f"{click.style(_MARKS[look][0], fg=_MARKS[look][1])} {look}" for look in _IN_THE_LEGEND)
    return "  ".join([*marks, "%: busy"])


def _bar(gpu: GpuBlocks) -> str:
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
    return f"{format_memory(gpu.memory - gpu.memory_free)} of {format_memory(gpu.memory)}"


def _process_lines(gpu: GpuState) -> Iterator[str]:
    for process in gpu.all_processes:
        memory = "" if process.memory is None else f"  {format_memory(process.memory)}"
        yield f"{one_line(str(process))}{memory}"
