"""`tranche demo`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

import click

from tranche.cli import demo_view
from tranche.cli.output import hint, print_json, say
from tranche.cli.runtime import Settings, TrancheCommand, child_environment, open_driver, output_option, register_places
from tranche.core.errors import PermissionDenied, UsageError
from tranche.demo.batches import DemoResult, DemoRunner
from tranche.demo.chart import chart_of, draw_chart
from tranche.demo.clock import DemoClock
from tranche.demo.jobs import Command
from tranche.demo.machine import MACHINE_TYPE, demo_machine
from tranche.demo.real import check_free, first_product, job_command, mig_boards, put_back
from tranche.demo.scene import DemoTracker
from tranche.demo.schedule import DEFAULT_SEED
from tranche.node.files.files import write_text
from tranche.node.host import Host
from tranche.node.locks.interrupts import WaitInterrupted

_SIMULATED_SPEED = 15.0
_REAL_SPEED = 1.0
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@click.command(cls=TrancheCommand)
@click.option(
    "--real", is_flag=True, help="Use the GPUs of this machine. They must be idle and uncut. The jobs only sleep."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation. Only --real asks.")
@click.option(
    "--speed",
    metavar="FACTOR",
    type=click.FloatRange(min=0.1, max=10_000),
    help="Speed of the demo's clock relative to real time. Default: 15, or 1 with --real.",
)
@click.option(
    "--seed", metavar="N", type=int, default=DEFAULT_SEED, show_default=True, help="Seed for the mixed requests."
)
@click.option("--picture", metavar="FILE", help="Write a chart of the jobs to FILE, as SVG.")
@output_option()
@click.pass_obj
def command(
    settings: Settings, /, real: bool, yes: bool, speed: float | None, seed: int, picture: str | None, output: str
) -> None:
    """Compare whole GPUs with slices, on a simulated machine.

    The demo runs the same jobs on whole GPUs and on slices, then serves mixed requests on demand. Without --real, it
    creates a simulated p4d.24xlarge and removes it afterwards. It needs no GPU and changes nothing else. The results go
    to stdout.
    """
    if picture is not None:
        _check_writable(picture)
    with _terminable():
        result = (
            _real(settings, yes, speed or _REAL_SPEED, seed) if real else _simulated(speed or _SIMULATED_SPEED, seed)
        )
    machine = f"{len(result.gpus)} x {result.gpus[0].name}" if real else MACHINE_TYPE
    if picture is not None:
        write_text(picture, draw_chart(chart_of(result, machine, simulated=not real)))
    if output == "json":
        print_json("DemoResult", **demo_view.result_json(result, machine, simulated=not real))
    else:
        demo_view.print_result(result, machine, simulated=not real)


def _check_writable(picture: str) -> None:
    """Refuse, before the demo runs, a file that cannot be written."""
    folder = Path(picture).parent
    if picture == "-" or Path(picture).is_dir() or not folder.is_dir():
        raise UsageError(f"cannot write a picture to {picture!r}", hint="name a file in a folder that exists")
    if not os.access(folder, os.W_OK):
        raise PermissionDenied(f"no permission to write {picture}")


def _simulated(speed: float, seed: int) -> DemoResult:
    boards = mig_boards()
    if boards:
        hint(
            f"this machine has GPUs that can be cut ({', '.join(dict.fromkeys(boards))}): tranche demo --real uses them"
        )
    say(f"tranche demo: a simulated {MACHINE_TYPE}, on a clock {speed:g} times as fast as a wall clock")
    with demo_machine(1 / speed) as machine:
        say(f"to watch it from another terminal: {machine.look}")
        return _play(machine.host, machine.job_command, machine.environment, speed, seed)


def _real(settings: Settings, yes: bool, speed: float, seed: int) -> DemoResult:
    with open_driver(settings) as driver:

        def host() -> AbstractContextManager[Host]:
            return closing(Host(driver, register_places(settings).state_dir))

        with host() as looking:
            gpus = first_product(looking.view().node)
            check_free(looking, gpus)
        say(f"tranche demo: {len(gpus)} x {gpus[0].name}. Jobs only sleep; GPUs are really cut.")
        if not yes:
            question = (
                "The demo changes their MIG mode (with resets where needed) and restores it afterwards. Continue?"
            )
            click.confirm(question, abort=True, err=True)
        try:
            with host() as playing:
                return _play(playing, job_command, child_environment(settings), speed, seed)
        finally:
            with host() as clearing:
                put_back(clearing, gpus)


def _play(host: Host, job: Command, environment: Mapping[str, str], speed: float, seed: int) -> DemoResult:
    clock = DemoClock(speed)
    on_terminal = sys.stderr.isatty()
    scene = DemoTracker(clock) if on_terminal else DemoTracker(clock, demo_view.plain_lines(clock.now))
    gpus = first_product(host.view().node)
    with demo_view.live(scene) if on_terminal else nullcontext():
        return DemoRunner(host, clock, job, environment, scene).play(gpus, seed)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does, so that nothing is left behind; unless ignored, as by nohup."""
    heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, _terminate) for number in heeded}
    try:
        yield
    except WaitInterrupted as stop:
        sys.exit(stop.exit_code)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise WaitInterrupted(number)
