"""`tranche demo`: a live picture on a terminal, plain lines elsewhere, and its figures at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tranche.cli.output import hint, print_json, print_table, say, show
from tranche.cli.runtime import Settings, TrancheCommand, child_environment, open_driver, output_option, register_places
from tranche.core.errors import PermissionDenied, UsageError
from tranche.demo.chart import chart_of, draw_chart
from tranche.demo.jobs import BatchResult, Command, DemoResult, DemoRunner, JobRecord, how_made, served_by
from tranche.demo.machine import (
    MACHINE_TYPE,
    check_free,
    demo_machine,
    first_product,
    job_command,
    mig_boards,
    put_back,
)
from tranche.demo.scene import Block, BlockState, DemoClock, DemoTracker, GpuPicture, Picture, clock_face
from tranche.demo.schedule import DEFAULT_SEED
from tranche.node.files.files import write_text
from tranche.node.host import Host
from tranche.node.locks.interrupts import WaitInterrupted, heeding_signals, uninterruptible

_SIMULATED_SPEED = 15.0
_REAL_SPEED = 1.0


@click.command(cls=TrancheCommand)
@click.option(
    "--real",
    is_flag=True,
    help="Use the GPUs on this machine, which must be idle and have no slices. The jobs only sleep.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation with --real.")
@click.option(
    "--speed",
    metavar="FACTOR",
    type=click.FloatRange(min=0.1, max=10_000),
    help="Speed of the demo's clock relative to real time. Default: 15, or 1 with --real.",
)
@click.option(
    "--seed", metavar="N", type=int, default=DEFAULT_SEED, show_default=True, help="Seed for the mixed requests."
)
@click.option("--picture", metavar="FILE", help="Write an SVG chart of the jobs to FILE.")
@output_option()
@click.pass_obj
def command(
    settings: Settings, /, real: bool, yes: bool, speed: float | None, seed: int, picture: str | None, output: str
) -> None:
    """Compare whole GPUs with slices on a simulated machine.

    The demo runs the same jobs on whole GPUs and on slices. Then it serves mixed requests on demand. Without --real, it
    creates a simulated p4d.24xlarge, removes it afterwards, and changes nothing else.
    """
    if picture is not None:
        _check_writable(picture)
    try:
        result = (
            _real(settings, yes, speed or _REAL_SPEED, seed) if real else _simulated(speed or _SIMULATED_SPEED, seed)
        )
    except WaitInterrupted as stop:
        sys.exit(stop.exit_code)
    machine = f"{len(result.gpus)} x {result.gpus[0].name}" if real else MACHINE_TYPE
    if picture is not None:
        write_text(picture, draw_chart(chart_of(result, machine, simulated=not real)))
    if output == "json":
        print_json("DemoResult", **result_json(result, machine, simulated=not real))
    else:
        print_result(result, machine, simulated=not real)


def _check_writable(picture: str) -> None:
    """Refuse, before the demo runs, a file that cannot be written."""
    folder = Path(picture).parent
    if picture == "-" or Path(picture).is_dir() or not folder.is_dir():
        raise UsageError(f"cannot write a picture to {picture!r}", hint="give a file in an existing folder")
    if not os.access(folder, os.W_OK):
        raise PermissionDenied(f"no permission to write {picture}")


def _simulated(speed: float, seed: int) -> DemoResult:
    boards = mig_boards()
    if boards:
        hint(
            f"this machine has GPUs that can be partitioned ({', '.join(dict.fromkeys(boards))}); "
            "to use them, run: tranche demo --real"
        )
    say(f"tranche demo: a simulated {MACHINE_TYPE}, on a clock {speed:g} times as fast as a wall clock")
    with heeding_signals(), demo_machine(1 / speed) as machine:
        say(f"to watch it from another terminal: {machine.look}")
        return _play(machine.host, machine.job_command, machine.environment, speed, seed)


def _real(settings: Settings, yes: bool, speed: float, seed: int) -> DemoResult:
    with open_driver(settings) as driver:

        def host() -> AbstractContextManager[Host]:
            return closing(Host(driver, register_places(settings).state_dir))

        with host() as looking:
            gpus = first_product(looking.view().node)
            check_free(looking, gpus)
        say(f"tranche demo: {len(gpus)} x {gpus[0].name}. The jobs only sleep, but the GPUs are really partitioned.")
        if not yes:
            question = (
                "The demo changes their MIG mode (with resets where needed) and restores it afterwards. Continue?"
            )
            click.confirm(question, abort=True, err=True)
        with heeding_signals():
            try:
                with host() as playing:
                    return _play(playing, job_command, child_environment(settings), speed, seed)
            finally:
                with uninterruptible(), host() as clearing:
                    put_back(clearing, gpus)


def _play(host: Host, job: Command, environment: Mapping[str, str], speed: float, seed: int) -> DemoResult:
    clock = DemoClock(speed)
    on_terminal = sys.stderr.isatty()
    scene = DemoTracker(clock) if on_terminal else DemoTracker(clock, plain_lines(clock.now))
    gpus = first_product(host.view().node)
    with live(scene) if on_terminal else nullcontext():
        return DemoRunner(host, clock, job, environment, scene).play(gpus, seed)


_UNIT_WIDTH = 8
_PROGRESS_WIDTH = 32
_STYLES = {BlockState.MAKING: "black on yellow", BlockState.IDLE: "white on grey23", BlockState.BUSY: "black on green"}
_MARKS = {BlockState.MAKING: "+", BlockState.IDLE: "○", BlockState.BUSY: "●"}
_FAR_FROM_THEORY = 0.1


@contextmanager
def live(scene: DemoTracker) -> Iterator[None]:
    """Redraw the scene on stderr while the block runs; the last picture stays."""
    console = Console(stderr=True)
    with Live(get_renderable=lambda: draw(scene.picture()), console=console, refresh_per_second=8):
        yield


def plain_lines(elapsed: Callable[[], float]) -> Callable[[str], None]:
    """What writes each announcement as a line on stderr, with the time on the demo's clock."""
    return lambda line: say(f"{clock_face(elapsed()):>5}  {line}")


def draw(picture: Picture) -> Group:
    """The picture for a terminal of 80 columns or more; what colours say, marks say as well."""
    header = Text(picture.title, style="bold")
    clock = Text(
        f"{clock_face(picture.seconds)} on a clock {picture.speed:g} times as fast   {picture.note}", style="dim"
    )
    total = picture.waiting + picture.running + picture.done
    jobs = Text(f"jobs    {picture.waiting:3} waiting  {picture.running:3} running  {picture.done:3} done   ")
    filled = _PROGRESS_WIDTH * picture.done // max(1, total)
    jobs.append("━" * filled, style="green").append("─" * (_PROGRESS_WIDTH - filled), style="dim")
    return Group(header, clock, Text(), *map(_draw_gpu, picture.gpus), Text(), jobs)


def _draw_gpu(gpu: GpuPicture) -> Text:
    line = Text(f"{gpu.label:<6} {gpu.mode:<7} ", no_wrap=True, overflow="crop")
    position = 0
    for block in gpu.blocks:
        line.append("·" * (_UNIT_WIDTH * (block.placement.start - position)), style="dim")
        line.append(_cell(block), style=_STYLES[block.state])
        position = block.placement.start + block.placement.size
    return line.append("·" * (_UNIT_WIDTH * (gpu.units - position)), style="dim")


def _cell(block: Block) -> str:
    """The block, as wide as its memory slices."""
    name = "whole GPU" if block.profile is None else str(block.profile)
    width = _UNIT_WIDTH * block.placement.size
    return f"{_MARKS[block.state]}{name}"[:width].ljust(width)


def print_result(result: DemoResult, machine: str, simulated: bool) -> None:
    """The figures on stdout."""
    whole, slices = result.whole, result.slices
    print_table(
        ("BATCH", "JOBS", "AT ONCE", "MEASURED", "JOBS ALONE"),
        [
            _batch_row(f"one job per GPU, {len(result.gpus)} GPUs", whole),
            _batch_row(f"one job per {result.profile} slice", slices),
        ],
    )
    show()
    show(f"{result.ratio:.2f} times as fast in slices; without overhead, {result.ideal_ratio:.2f}")
    show()
    for line in _overheads(result, machine, simulated).split("\n"):
        show(line)
    rows = [_mixed_row(record, result) for record in result.mixed]
    print_table(("REQUEST", "SERVED BY", "GPU", "INSTANCE", "WAITED", "RAN"), rows)
    show()
    show(_mixed_summary(result))


def result_json(result: DemoResult, machine: str, simulated: bool) -> dict[str, Any]:
    """The figures as JSON data; times in seconds of the demo's clock."""
    index = {gpu.uuid: gpu.index for gpu in result.gpus}
    return {
        "machine": machine,
        "simulated": simulated,
        "clockSpeed": result.speed,
        "gpus": len(result.gpus),
        "profile": str(result.profile),
        "wholeGpus": _batch_json(result.whole),
        "slices": {
            **_batch_json(result.slices),
            "cuttingSeconds": round(result.slices.cutting, 2),
            "grantingSeconds": round(result.slices.granting, 2),
            "cutSteps": result.cut_steps,
        },
        "ratio": round(result.ratio, 3),
        "ratioAtFullTime": round(result.ratio_at_full_time, 3),
        "idealRatio": round(result.ideal_ratio, 3),
        "mixed": [
            {
                "request": str(record.job.request.demand),
                "profile": None if record.grants[0].slot is None else str(record.grants[0].slot.profile),
                "gpu": index[record.grants[0].gpu_uuid],
                "instancesCreated": record.created,
                "instancesDestroyed": record.destroyed,
                "waitedSeconds": round(record.granted - record.asked, 2),
                "ranSeconds": round(record.ended - record.granted, 2),
            }
            for record in result.mixed
        ],
    }


def _batch_row(name: str, batch: BatchResult) -> tuple[object, ...]:
    return (name, len(batch.records), batch.at_once, f"{batch.seconds:.1f} s", f"{batch.ideal:.1f} s")


def _batch_json(batch: BatchResult) -> dict[str, object]:
    return {
        "jobs": len(batch.records),
        "atOnce": batch.at_once,
        "seconds": round(batch.seconds, 2),
        "idealSeconds": round(batch.ideal, 2),
    }


def _overheads(result: DemoResult, machine: str, simulated: bool) -> str:
    """What the measured times contain beside the jobs, and how far that is from theory."""
    speed, slices, count = result.speed, result.slices, len(result.slices.records)
    text = f"""\
The {slices.seconds:.1f} s include {slices.cutting:.1f} s to partition the GPUs ({result.cut_steps} steps: MIG mode on, resets,
{count} instances) and {slices.granting:.1f} s to grant {count} shares.
"""
    if simulated:
        text += f"""\
All times are from a clock {speed:g} times as fast as a wall clock, on a simulated {machine}.
Jobs and GPU operations take 1/{speed:g} of their time on hardware. Tranche's own work takes its full time, so each
second of it counts {speed:g} times here. If this work counted only once, except during partitioning,
the ratio would be {result.ratio_at_full_time:.2f}.
"""
    else:
        text += f"""\
The jobs only sleep, for 1/{speed:g} of their nominal time. Partitioning is real, so it counts {speed:g} times on this clock.
"""
    off = result.ratio / result.ideal_ratio - 1
    if abs(off) > _FAR_FROM_THEORY:
        text += f"""\
The measured ratio is {abs(off):.0%} {"above" if off > 0 else "below"} the ratio without overhead. The overhead was
{slices.overhead:.1f} s in slices and {result.whole.overhead:.1f} s on whole GPUs.
"""
    return text


def _mixed_row(record: JobRecord, result: DemoResult) -> tuple[object, ...]:
    index = {gpu.uuid: gpu.index for gpu in result.gpus}
    return (
        record.job.request.demand,
        served_by(record),
        index[record.grants[0].gpu_uuid],
        how_made(record),
        f"{record.granted - record.asked:.1f} s",
        f"{record.ended - record.granted:.1f} s",
    )


def _mixed_summary(result: DemoResult) -> str:
    reused = sum(not record.created for record in result.mixed)
    created = sum(record.created for record in result.mixed)
    destroyed = sum(record.destroyed for record in result.mixed)
    return (
        f"{len(result.mixed)} requests: {reused} reused an idle instance and {created} got a new one; "
        f"{destroyed} idle instances were destroyed to make room"
    )
