"""`tranche top`: the machine at a glance, redrawn."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import click

from tranche.cli.duration import DurationType
from tranche.cli.looking import look_at
from tranche.cli.output import print_json
from tranche.cli.overview import HEAD_LINES, MachinePicture, overview
from tranche.cli.runtime import Settings, TrancheCommand, open_host, output_option
from tranche.core.allocation import NodeView
from tranche.documents.overview import overview_data
from tranche.documents.queue import why_they_wait
from tranche.hardware.nvml_gauges import NvmlGaugeReader
from tranche.local.wakeup_pipe import silent
from tranche.node.host import Host
from tranche.node.store.register import process_owners

_LONGEST_KEY = 8


@click.command(cls=TrancheCommand)
@click.option("--once", is_flag=True, help="Print one picture and exit.")
@click.option(
    "--interval",
    type=DurationType(least=0.1),
    default="1s",
    show_default=True,
    metavar="TIME",
    help="Time between two pictures, at least 100ms.",
)
@output_option()
@click.pass_obj
def command(settings: Settings, /, once: bool, interval: float, output: str) -> None:
    """Show a live view of GPUs, slices and shares.

    The view shows totals, problems, waiting requests, a bar of memory slices for each GPU, shares and processes. Lost,
    faulty and cordoned GPUs come first. Borders separate slices and the parts of a shared device. The percentage is how
    busy a GPU is. A dash means that no measurement exists, and brackets show the busiest slice of a GPU in MIG mode.

    The arrow keys, PgUp, PgDn, Home and End scroll. The key / finds lines, Esc shows all lines again, and q or Ctrl-C
    quits.

    Without a terminal, or with -o json, the command prints one picture and exits.
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
