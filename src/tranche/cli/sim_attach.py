"""`tranche sim attach`: be a client of a simulated GPU or slice, as a CUDA program would be."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import click

from tranche.cli.output import say
from tranche.cli.runtime import Settings, TrancheCommand
from tranche.core.errors import GpuNotFound, SimulatorError, UsageError
from tranche.core.quantity import parse_memory
from tranche.local.child import run_child
from tranche_simulator import SimulatedMachine

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CONTAINER_STATE = "/run/tranche/simulator/state"
_COMMAND_KEY = "tranche.sim.attach.command"


class _CommandAfterDashes(TrancheCommand):
    """Takes what follows `--` as the command to run, so that TARGET may be left out before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_COMMAND_KEY] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)


@click.command(cls=_CommandAfterDashes, options_metavar="[OPTIONS]")
@click.argument("target", required=False, metavar="[TARGET] [-- COMMAND...]")
@click.option("--memory", metavar="AMOUNT", help="GPU memory to use on each target, such as 512Mi or 4G. Default: 0.")
@click.pass_context
def attach(context: click.Context, target: str | None, memory: str | None) -> int:
    """Use a simulated GPU or slice while a command runs.

    TARGET is a GPU index, a GPU UUID, a MIG UUID, or a comma-separated list. It defaults to $CUDA_VISIBLE_DEVICES.
    Without COMMAND, the GPU stays in use until Ctrl-C or SIGTERM. The exit code is the command's. The machine is that
    of --simulate, or of $TRANCHE_SIM_STATE.
    """
    targets = _targets(target or os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    machine = _machine(context.ensure_object(Settings))
    amount = parse_memory(memory) if memory else 0
    uuids = [target_uuid(machine, target) for target in targets]
    with contextlib.ExitStack() as held:
        for uuid in uuids:
            held.enter_context(machine.attached(uuid, memory=amount))
        command: list[str] = context.meta.get(_COMMAND_KEY, [])
        return _run(command) if command else _hold(uuids)


def _machine(settings: Settings) -> SimulatedMachine:
    if settings.simulate:
        return SimulatedMachine.open(settings.simulate)
    state = Path(os.environ.get("TRANCHE_SIM_STATE") or _CONTAINER_STATE)
    if not state.is_file():
        raise SimulatorError(
            f"no simulated machine at {state}",
            hint="name one with --simulate, or set the variables of `tranche sim env`",
        )
    return SimulatedMachine(state.parent)


def _targets(text: str) -> list[str]:
    targets = [part.strip() for part in text.split(",") if part.strip()]
    if not targets:
        raise UsageError("nothing to attach to", hint="give a GPU or MIG UUID, or set CUDA_VISIBLE_DEVICES")
    return targets


def _run(command: Sequence[str]) -> int:
    """The command's exit code; 127 or 126, as from a shell, if it cannot start."""
    path = shutil.which(command[0])
    if path is None:
        say(f"{command[0]}: command not found")
        return 127
    try:
        return run_child(path, command, os.environ)
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        return 126


def _hold(uuids: Sequence[str]) -> int:
    # What is ignored stays ignored, so that nohup works: a blocked signal would be waited for all the same.
    heeded = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, heeded)
    say(f"attached to {', '.join(uuids)} as process {os.getpid()}; end with Ctrl-C")
    signal.sigwait(heeded)
    return 0


def target_uuid(machine: SimulatedMachine, target: str) -> str:
    """The UUID that a GPU index stands for; anything else is taken for a UUID. GpuNotFound past the last GPU."""
    if not target.isdecimal():
        return target
    gpus = machine.gpus()
    if int(target) >= len(gpus):
        raise GpuNotFound(f"{machine.name} has no GPU {target}", hint=f"its GPUs are 0 to {len(gpus) - 1}")
    return gpus[int(target)].uuid
