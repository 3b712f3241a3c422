"""`tranche top`: the machine at a glance, redrawn."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from tranche.cli.duration import DurationType
from tranche.cli.looking import look_at
from tranche.cli.output import print_json
from tranche.cli.overview import MachinePicture, overview
from tranche.cli.runtime import Settings, TrancheCommand, open_host, output_option
from tranche.cli.top_screen import TopView
from tranche.core.allocation import NodeView
from tranche.documents.overview import overview_data
from tranche.documents.queue import why_they_wait
from tranche.hardware.nvml_gauges import NvmlGaugeReader
from tranche.local.wakeup_pipe import silent
from tranche.node.host import Host
from tranche.node.store.register import process_owners

_LONGEST_KEY = 8


@click.command(cls=TrancheCommand)
@click.option("--once", is_flag=True, help="Print the picture once and end.")
@click.option(
    "--interval",
    type=DurationType(least=0.1),
    default="1s",
    show_default=True,
    metavar="TIME",
    help="How often to redraw the picture.",
)
@output_option()
@click.pass_obj
def command(settings: Settings, /, once: bool, interval: float, output: str) -> None:
    """Show the machine at a glance: totals, what is wrong, who waits for what, and GPUs as bars of memory slices.

    GPUs that serve nobody come first, what runs on them last. Borders stand between slices, and between the parts of what
    is shared. How much of the time a GPU was busy is a dash where nothing measures it; of a GPU in MIG mode, the busiest of
    its slices is in brackets. The arrow keys, PgUp, PgDn, Home and End scroll, / finds lines, Esc shows all again, q or
    Ctrl-C ends it.

    Without a terminal, and with -o json, top prints the picture once.
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
