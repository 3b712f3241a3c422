"""The picture that `tranche top` draws: GPUs as bars of memory slices, what they serve, and who waits."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tranche.cli.output import one_line
from tranche.core.allocation import NodeView
from tranche.core.quantity import format_memory
from tranche.core.state import GpuState
from tranche.documents import describe
from tranche.documents.slices import SliceRow, slices_on, whole_holders
from tranche.node.records import Waiter

_BLOCKS = {"held": ("█", "green"), "preparing": ("▒", "yellow"), "in use": ("▓", "magenta"), "idle": ("░", "cyan")}
_MISSING = ("?", "red")
_FREE = ("·", None)
_UNCUT_CELLS = 8


def overview(view: NodeView, queue: Sequence[Waiter], now: float) -> list[str]:
    """The picture as lines with colour codes; `now` is seconds since the epoch."""
    lines = [_legend(), ""]
    slices = {gpu.uuid: slices_on(view, gpu) for gpu in view.node}
    width = max((len(_cells(view, gpu, slices[gpu.uuid])) for gpu in view.node), default=0)
    used = {gpu.uuid: _memory(gpu) for gpu in view.node}
    memory_width = max((len(text) for text in used.values()), default=0)
    for gpu in view.node:
        cells = _cells(view, gpu, slices[gpu.uuid])
        bar = "".join(click.style(mark, fg=colour) for mark, colour in cells) + " " * (width - len(cells))
        state = describe.gpu_state(view, gpu, slices[gpu.uuid], whole_holders(view, gpu))
        lines.append(f"GPU {gpu.index:<2} {bar}  {used[gpu.uuid]:>{memory_width}}  {state}")
        lines += [f"       {line}" for line in _process_lines(gpu)]
    lines += ["", f"{len(view.allocations)} allocations, {len(queue)} waiting"]
    for each in view.allocations:
        what = f"{each.id}  {describe.age(now - each.created):>6}  {describe.grants(each, view.node)}"
        lines.append(f"  {what}  {one_line(each.command)}".rstrip())
    for position, waiter in enumerate(queue, start=1):
        what = f"{waiter.id}  {describe.age(now - waiter.created):>6}  {waiter.request}"
        lines.append(f"  {position}. {what}  {one_line(waiter.command)}".rstrip())
    return lines


def _legend() -> str:
    words = [(*_BLOCKS[state], state) for state in _BLOCKS] + [(*_FREE, "free")]
    return "  ".join(f"{click.style(mark, fg=colour)} {word}" for mark, colour, word in words)


def _cells(view: NodeView, gpu: GpuState, slices: tuple[SliceRow, ...]) -> list[tuple[str, str | None]]:
    """One cell for each memory slice; for an uncut GPU as many cells of one kind."""
    count = gpu.memory_slices or _UNCUT_CELLS
    if gpu.lost:
        return [_MISSING] * count
    if not gpu.mig_enabled and all(each.state != "preparing" for each in slices):
        if whole_holders(view, gpu):
            return [_BLOCKS["held"]] * count
        return [_BLOCKS["in use"] if gpu.all_processes else _FREE] * count
    cells: list[tuple[str, str | None]] = [_FREE] * count
    for each in slices:
        for unit in range(each.placement.start, each.placement.start + each.placement.size):
            cells[unit] = _BLOCKS.get(each.state, _MISSING)
    return cells


def _memory(gpu: GpuState) -> str:
    return f"{format_memory(gpu.memory - gpu.memory_free)} of {format_memory(gpu.memory)}"


def _process_lines(gpu: GpuState) -> list[str]:
    return [
        one_line(str(process)) + ("" if process.memory is None else f"  {format_memory(process.memory)}")
        for process in gpu.all_processes
    ]
