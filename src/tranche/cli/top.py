"""`tranche top`: the machine at a glance, redrawn: totals, problems, waiters, and GPUs as bars of memory slices."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import click

from tranche.cli.options import DurationType
from tranche.cli.output import print_json
from tranche.cli.runtime import Settings, TrancheCommand, look_at, open_host, output_option
from tranche.core.allocation import Allocation, FractionalShare, NodeView
from tranche.core.printable import one_line
from tranche.core.quantity import format_memory
from tranche.core.readings import GpuReading
from tranche.core.state import GpuState
from tranche.documents import describe
from tranche.documents.blocks import BlockRow, BlockStatus, blocks_of
from tranche.documents.holder_names import Owners, called, holder_name, names_of, owner_name
from tranche.documents.machine import gpu_document
from tranche.documents.overview import allocation_document, overview_data, why_they_wait
from tranche.documents.picture import headline, legend
from tranche.documents.reasons import shares_of
from tranche.documents.slices import slices_on, whole_holders, why_withheld
from tranche.hardware.nvml_gauges import NvmlGaugeReader
from tranche.local.wakeup_pipe import silent
from tranche.node.host import Host
from tranche.node.store.records import Waiter
from tranche.node.store.register import process_owners

_LONGEST_KEY = 8


@click.command(cls=TrancheCommand)
@click.option("--once", is_flag=True, help="Print one snapshot and exit.")
@click.option(
    "--interval",
    type=DurationType(least=0.1),
    default="1s",
    show_default=True,
    metavar="TIME",
    help="Time between snapshots, at least 100ms.",
)
@output_option()
@click.pass_obj
def command(settings: Settings, /, once: bool, interval: float, output: str) -> None:
    """Show a live view of GPUs, slices and shares.

    The view shows totals, problems, waiting requests, shares, processes, and a bar of memory slices for each GPU. Lost,
    faulty and cordoned GPUs come first. Borders separate slices and the parts of a shared device. The percentage shows
    how busy a GPU is. A dash means that no measurement is available. For a GPU in MIG mode, the percentage of its
    busiest slice appears in brackets.

    The arrow keys, PgUp, PgDn, Home and End scroll. Press / to search, Esc to show all lines again, and q or
    Ctrl-C to quit.

    Without a terminal, or with -o json, the command prints one snapshot and exits.
    """
    live = not once and output == "table" and sys.stdout.isatty() and sys.stdin.isatty()
    with open_host(settings, reading=True) as host:
        if output == "json":
            _print_document(host)
        elif live:
            _redraw(host, interval)
        else:
            for line in _picture(host, look_at(host), NvmlGaugeReader(time.monotonic)):
                click.echo(line)


def _picture(host: Host, view: NodeView, gauges: NvmlGaugeReader, width: int | None = None) -> list[str]:
    queue, now = host.waiters(), time.time()
    owners = process_owners(view.allocations, queue)
    away = silent(host.places, queue, now)
    reasons = [why for why, _ in why_they_wait(view, queue, away, owners)] if queue else []
    return overview(MachinePicture(view, queue, reasons, gauges.read(view.node), owners, now), width)


def _print_document(host: Host) -> None:
    view, queue = look_at(host), host.waiters()
    away = silent(host.places, queue, time.time())
    print_json("Overview", **overview_data(view, queue, away, process_owners(view.allocations, queue)))


def _redraw(host: Host, interval: float) -> None:
    """Draw on the alternate screen until q is pressed."""
    # rich takes longer to import than everything else here; only a live picture needs it.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, gauges, screen = Console(), NvmlGaugeReader(time.monotonic), TopView()
    with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while not screen.ended:
            # Words on stderr would tear the picture.
            lines = _picture(host, host.look(lambda error: None), gauges, console.width)
            until = time.monotonic() + interval
            while not screen.ended:
                shown = "\n".join(screen.shown(lines, console.height))
                live.update(Text.from_ansi(shown, no_wrap=True, overflow="ellipsis"), refresh=True)
                key = _key_within(max(0.0, until - time.monotonic()))
                if key is None:
                    break
                screen = screen.pressed(key, lines, console.height)


@contextmanager
def _single_keys() -> Iterator[None]:
    """The terminal gives each key at once and does not show it; Ctrl-C still interrupts."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key_within(seconds: float) -> str | None:
    """The next key, an empty text when the terminal is gone, None when no key came in time.

    A key such as an arrow comes as several bytes at once.
    """
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), _LONGEST_KEY).decode(errors="replace") if ready else None


HELP = "q ends  / finds  Esc shows all  arrows, PgUp, PgDn scroll"

_UP, _DOWN = ("k", "\x1b[A", "\x1bOA"), ("j", "\x1b[B", "\x1bOB")
_PAGE_UP, _PAGE_DOWN = ("b", "\x1b[5~"), (" ", "\x1b[6~")
_HOME, _END = ("g", "\x1b[H", "\x1bOH", "\x1b[1~"), ("G", "\x1b[F", "\x1bOF", "\x1b[4~")
_ESCAPE, _ENTER, _ERASE = "\x1b", ("\r", "\n"), ("\x7f", "\x08")


@dataclass(frozen=True, slots=True)
class TopView:
    """How a person looks at the picture: from the line `first` on, at lines with `looked_for`, which may be `typing` now."""

    first: int = 0
    looked_for: str = ""
    typing: bool = False
    ended: bool = False

    def pressed(self, key: str, lines: Sequence[str], height: int) -> TopView:
        """After that key; an empty one means that the terminal is gone. `height` is the terminal's, in lines."""
        if not key:
            return replace(self, ended=True)
        if self.typing:
            return self._typed(key)
        room, last = self._room(height), max(0, len(self._found(lines)) - self._room(height))
        if key in ("q", "Q"):
            return replace(self, ended=True)
        if key == "/":
            return replace(self, typing=True, looked_for="", first=0)
        if key == _ESCAPE:
            return TopView()
        moves = {_UP: -1, _DOWN: 1, _PAGE_UP: -room, _PAGE_DOWN: room, _HOME: -len(lines), _END: len(lines)}
        step = next((step for keys, step in moves.items() if key in keys), 0)
        return replace(self, first=min(last, max(0, min(self.first, last) + step)))

    def shown(self, lines: Sequence[str], height: int) -> list[str]:
        """What fits: the head, the lines from the first one on, and at the bottom what the keys do and what is out of sight."""
        found, room = self._found(lines), self._room(height)
        first = min(self.first, max(0, len(found) - room))
        part = found[first : first + room]
        below = [f"/{self.looked_for}█" if self.typing else self._status(first, len(part), len(found))]
        return [*lines[:HEAD_LINES], *part, *[""] * (room - len(part)), *below]

    def _typed(self, key: str) -> TopView:
        if key in _ENTER:
            return replace(self, typing=False)
        if key == _ESCAPE:
            return TopView()
        if key in _ERASE:
            return replace(self, looked_for=self.looked_for[:-1])
        return replace(self, looked_for=self.looked_for + key) if key.isprintable() else self

    def _found(self, lines: Sequence[str]) -> list[str]:
        rest = list(lines[HEAD_LINES:])
        wanted = self.looked_for.casefold()
        return [each for each in rest if wanted in click.unstyle(each).casefold()] if wanted else rest

    def _status(self, first: int, shown: int, of: int) -> str:
        below = of - first - shown
        hidden = [f"{count} more {where}" for count, where in ((first, "above"), (below, "below")) if count]
        where = f"… {', '.join(hidden)}  " if hidden else ""
        what = f"those with '{self.looked_for}'  " if self.looked_for else ""
        return f"{where}{what}{HELP}"

    @staticmethod
    def _room(height: int) -> int:
        return max(1, height - HEAD_LINES - 1)


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
