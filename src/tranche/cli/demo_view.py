"""How the demo is shown: a live picture on a terminal, plain lines elsewhere, and its figures at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tranche.cli.output import print_table, say, show
from tranche.demo.batches import BatchResult, DemoResult, how_made, served_by
from tranche.demo.clock import clock_face
from tranche.demo.jobs import JobRecord
from tranche.demo.scene import Block, BlockState, DemoTracker, GpuPicture, Picture

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
    show(f"{result.ratio:.2f} times faster in slices; the jobs' own times alone give {result.ideal_ratio:.2f}")
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
Contained in the {slices.seconds:.1f} s: cutting the GPUs {slices.cutting:.1f} s ({result.cut_steps} steps: MIG mode on, resets,
{count} instances), then granting {count} shares {slices.granting:.1f} s.
"""
    if simulated:
        text += f"""\
All times are of a clock {speed:g} times as fast as a wall clock, on a simulated {machine}.
Jobs and GPU operations take 1/{speed:g} of their time on hardware; Tranche's own work takes its full time,
so each second of it counts {speed:g} times here. Counted once outside the cutting, the ratio is {result.ratio_at_full_time:.2f}.
"""
    else:
        text += f"""\
The jobs only sleep, 1/{speed:g} of what they stand for. Cutting is real: on this clock it counts {speed:g} times.
"""
    off = result.ratio / result.ideal_ratio - 1
    if abs(off) > _FAR_FROM_THEORY:
        text += f"""\
The measured ratio is {abs(off):.0%} {"above" if off > 0 else "below"} theory: beyond the jobs' own times the batch in slices took
{slices.overhead:.1f} s, the batch on whole GPUs {result.whole.overhead:.1f} s.
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
        f"{len(result.mixed)} requests: {reused} reused an idle instance, {created} got a new one; "
        f"{destroyed} idle instances were destroyed to make room"
    )
