"""`tranche sim inject`: faults for a simulated machine."""

from __future__ import annotations

import click

from tranche.cli.output import say
from tranche.cli.runtime import TrancheGroup
from tranche.cli.sim_attach import target_uuid
from tranche.core.errors import UsageError
from tranche.core.quantity import parse_memory
from tranche_simulator import SimulatedMachine
from tranche_simulator.library import can_fail, special_faults

_MACHINE_KEY = "tranche.sim.machine"
_UNKNOWN = 999  # NVML's UNKNOWN and CUDA's; what is no function of theirs fails whatever the code
_PHANTOM_PID = 4_100_000  # near the kernel's highest pid, so that it is nobody's


@click.group(cls=TrancheGroup)
@click.argument("name")
@click.pass_context
def inject(context: click.Context, name: str) -> None:
    """Make the driver of machine NAME fail, be slow, or lose a GPU. Programs that run see it at once."""
    context.meta[_MACHINE_KEY] = name


def _machine(context: click.Context) -> SimulatedMachine:
    name: str = context.meta[_MACHINE_KEY]
    return SimulatedMachine.open(name)


def _driver_function(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    """An injection into a name that no program can call would silently do nothing."""
    if not can_fail(name):
        raise UsageError(
            f"neither NVML nor CUDA has a function '{name}'",
            hint=f"for example nvmlDeviceCreateGpuInstance, or cuMemAlloc; and also {', '.join(special_faults())}",
        )
    return name


@inject.command()
@click.argument("function", callback=_driver_function)
@click.option(
    "--code",
    type=click.IntRange(1, 999),
    default=_UNKNOWN,
    show_default=True,
    help="The nvmlReturn_t to give: 19 is IN_USE; for CUDA, the CUresult.",
)
@click.option("--calls", type=click.IntRange(1), default=1, show_default=True, help="For how many calls.")
@click.option("--gpu", type=click.IntRange(0), help="Only on this GPU; else on any.")
@click.pass_context
def error(context: click.Context, function: str, code: int, calls: int, gpu: int | None) -> None:
    """Let the next calls of an NVML FUNCTION fail, or of one of CUDA's driver: nvmlDeviceCreateGpuInstance --code 23.

    A reset fails as trancheSimResetGpu. What goes wrong with MPS has names of its own, such as mpsServerStart.
    """
    _machine(context).inject_error(function, code, calls=calls, gpu=gpu)
    say(f"the next {calls} calls of {function} return {code}" if calls > 1 else f"the next {function} returns {code}")


@inject.command()
@click.argument("function", callback=_driver_function)
@click.argument("seconds", type=click.FloatRange(min=0, min_open=True))
@click.option("--gpu", type=click.IntRange(0), help="Only on this GPU; else on any.")
@click.pass_context
def latency(context: click.Context, function: str, seconds: float, gpu: int | None) -> None:
    """Make every call of an NVML or CUDA FUNCTION take SECONDS longer, until cleared."""
    _machine(context).inject_latency(function, seconds, gpu=gpu)
    say(f"{function} takes {seconds:g} s longer")


@inject.command()
@click.argument("gpu", type=click.IntRange(0))
@click.argument("code", type=click.IntRange(1))
@click.pass_context
def xid(context: click.Context, gpu: int, code: int) -> None:
    """Report XID number CODE on a GPU, to programs that wait for events."""
    _machine(context).inject_xid(gpu, code)
    say(f"XID {code} on GPU {gpu}")


@inject.command()
@click.argument("gpu", type=click.IntRange(0))
@click.pass_context
def lost(context: click.Context, gpu: int) -> None:
    """Let a GPU fall off the bus, until cleared."""
    _machine(context).inject_lost(gpu)
    say(f"GPU {gpu} is lost")


@inject.command()
@click.argument("target", metavar="GPU|UUID")
@click.option("--pid", type=click.IntRange(1), default=_PHANTOM_PID, show_default=True, help="The pid it shows.")
@click.option("--memory", metavar="AMOUNT", default="64Mi", show_default=True, help="GPU memory it holds.")
@click.pass_context
def busy(context: click.Context, target: str, pid: int, memory: str) -> None:
    """Put a client without a process on a GPU (index or UUID) or a MIG UUID, until cleared."""
    machine = _machine(context)
    uuid = target_uuid(machine, target)
    machine.inject_busy(uuid, pid=pid, memory=parse_memory(memory))
    say(f"process {pid} uses {uuid}")


@inject.command("stuck-mode")
@click.argument("gpu", type=click.IntRange(0))
@click.pass_context
def stuck_mode(context: click.Context, gpu: int) -> None:
    """Keep changes of MIG mode on a GPU pending, until cleared."""
    _machine(context).inject_stuck_mode(gpu)
    say(f"changes of MIG mode on GPU {gpu} stay pending")


@inject.command()
@click.pass_context
def clear(context: click.Context) -> None:
    """Undo every injected fault."""
    _machine(context).clear_injections()
    say("no injected faults are left")
