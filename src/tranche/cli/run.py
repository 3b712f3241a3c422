"""`tranche run REQUEST -- CMD...`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tranche.cli.duration import TIMEOUT_HELP, DurationType
from tranche.cli.output import say, warn
from tranche.cli.request_options import adopt_foreign_option, request_from, request_options
from tranche.cli.runtime import Settings, TrancheCommand, child_environment, open_host
from tranche.core.allocation import ComputeSlice, FractionalShare, Grant, Slice, WholeGpu
from tranche.core.errors import UsageError
from tranche.core.quantity import format_memory
from tranche.core.state import GpuProcess, GpuState
from tranche.local.run import RunReporter, RunRequest, run
from tranche.node.held import HeldAllocation
from tranche.node.locks.deciding import WaitLimit
from tranche.node.processes.keeping import RemainingProcesses
from tranche.planning.decide.allocate import Waiting
from tranche.planning.steps import Step

if TYPE_CHECKING:
    from tranche.local.recorder import DecisionLog


@click.command(cls=TrancheCommand, context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@request_options
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait in the queue if nothing fits.")
@click.option(
    "--timeout",
    type=DurationType(),
    metavar="TIME",
    help=TIMEOUT_HELP,
)
@adopt_foreign_option
@click.option(
    "--record",
    metavar="FILE",
    envvar="TRANCHE_RECORD",
    help="Append each decision with its input to FILE, for tranche replay. Default: $TRANCHE_RECORD.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only warnings and errors.")
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_obj
def command(
    settings: Settings,
    /,
    wait: bool,
    timeout: float | None,
    adopt_foreign: str,
    record: str | None,
    quiet: bool,
    command_line: tuple[str, ...],
    **request: Any,
) -> None:
    """Run a command on a share of a GPU.

    Request the share with one of --gpus, --gpu, --gpu-memory and --mig-profile. If nothing fits, the request waits in
    the queue. The command sees only its share, through CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES. Tranche
    releases the share when the command ends, and exits with the command's exit code.

    \b
    $ tranche run --gpu-memory 4Gi -- python train.py
    $ tranche run --gpu 0.5 -- ./benchmark
    $ tranche run --mig-profile 2g.10gb -- bash
    """
    if not command_line:
        raise UsageError("no command to run", hint="put it after --: tranche run --gpu-memory 4Gi -- python train.py")
    if not wait and timeout is not None:
        raise UsageError("--no-wait and --timeout exclude each other", hint="--no-wait fails at once, --timeout waits")
    reporter = _QuietReporter() if quiet else _Reporter()
    with ExitStack() as stack:
        asked = RunRequest(
            request=request_from(**request),
            command=command_line,
            environment=child_environment(settings),
            patience=WaitLimit(wait=wait, seconds=timeout),
            adopt_foreign_destroy=adopt_foreign == "destroy",
            record=None if record is None else stack.enter_context(closing(_recorder(record))),
        )
        sys.exit(run(stack.enter_context(open_host(settings)), asked, reporter))


def _recorder(path: str) -> DecisionLog:
    from tranche.local.recorder import DecisionLog  # seldom needed, and every `tranche run` loads this module

    return DecisionLog(Path(path), failed=lambda error: warn(f"a decision was not recorded: {error.strerror}"))


class _QuietReporter(RunReporter):
    """Says nothing but what changes the walls of the share."""

    def cancelled(self, error: Exception) -> None:
        """Say that the request was cancelled."""
        warn(str(error))

    def unlimited(self, why: str) -> None:
        """Say why."""
        warn(why)

    def server_ended(self, why: str) -> None:
        """Say why programs fail."""
        warn(why)

    def kept(self, error: Exception) -> None:
        """Say what frees the share."""
        warn(f"the share is not free yet; the next tranche command frees it: {error}")

    def above(self, part: FractionalShare, gpu: GpuState, used: int) -> None:
        """Say that the share's processes have more than it was given."""
        warn(
            f"the processes of this share use {format_memory(used)} of {gpu.full_name}, but the share has "
            f"{format_memory(part.memory)}: Tranche now counts it as unlimited"
        )

    def outside(self, process: GpuProcess, gpu: GpuState) -> None:
        """Say which program of the share's command uses which other GPU, and why that may be."""
        warn(
            f"{process} was started in this share but uses a device of {gpu.full_name} outside the share: it lacks the share's "
            "CUDA_VISIBLE_DEVICES, which sudo and su - drop by default"
        )


class _Reporter(_QuietReporter):
    """Tells a person on stderr what happens, each thing once."""

    def __init__(self) -> None:
        self._last = ""

    def waiting(self, outcome: Waiting, ahead: int, reasons: str) -> None:
        """Say why, and again only when it changes."""
        turn = f"{ahead} ahead in the queue" if ahead else "next in the queue"
        self._say(f"waiting, {turn}: {reasons}")

    def granted(self, held: HeldAllocation, gpus: Mapping[str, GpuState]) -> None:
        """Say which share it is, and how strong its fence."""
        allocation = held.allocation
        what = ", ".join(_describe(grant, gpus[grant.gpu_uuid]) for grant in allocation.grants)
        self._say(f"allocation {allocation.id}: {what}, {allocation.grants[0].walls.sentence}")

    def left(self, remains: RemainingProcesses) -> None:
        """Say what keeps the share after the command has ended."""
        ends = "they end" if len(remains.processes) > 1 else "it ends"
        self._say(f"the command has ended; {remains} keeps its share until {ends}")

    def step(self, gpu: GpuState, step: Step) -> None:
        """Say what is being done to a GPU."""
        self._say(f"{gpu.label}: {step}")

    def _say(self, line: str) -> None:
        if line != self._last:
            say(f"tranche: {line}")
        self._last = line


def _describe(grant: Grant, gpu: GpuState) -> str:
    match grant:
        case WholeGpu():
            return f"all of {gpu.full_name}"
        case Slice():
            return f"MIG slice {grant.profile} at {grant.placement} of {gpu.full_name}"
        case ComputeSlice():
            return f"MIG slice {grant.name} in {grant.slot.profile} at {grant.slot.placement} of {gpu.full_name}"
        case FractionalShare():
            inside = "" if grant.slot is None else f"{grant.slot.profile} at {grant.slot.placement} of "
            return f"{format_memory(grant.memory)} of {inside}{gpu.full_name}"
