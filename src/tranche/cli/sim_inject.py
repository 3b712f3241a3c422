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
_UNKNOWN = 999  # NVML's UNKNOWN and CUDA's; a function of neither fails whatever the code
_PHANTOM_PID = 4_100_000  # near the kernel's highest pid, so that no process has it

_gpu_option = click.option("--gpu", metavar="GPU", type=click.IntRange(0), help="Index of the GPU. Default: all GPUs.")


@click.group(cls=TrancheGroup)
@click.argument("name")
@click.pass_context
def inject(context: click.Context, name: str) -> None:
    """Inject faults into a simulated machine.

    The driver of machine NAME fails, slows down or loses a GPU. Running programs are affected too.
    """
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
    metavar="CODE",
    type=click.IntRange(1, 999),
    default=_UNKNOWN,
    show_default=True,
    help="Error code to return: an nvmlReturn_t, such as 19 (IN_USE), or a CUresult.",
)
@click.option(
    "--calls", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Number of calls that fail."
)
@_gpu_option
@click.pass_context
def error(context: click.Context, function: str, code: int, calls: int, gpu: int | None) -> None:
    """Make the next calls of a driver function fail.

    FUNCTION is a function of NVML or of the CUDA driver, such as nvmlDeviceCreateGpuInstance. With trancheSimResetGpu,
    a reset fails. With names such as mpsServerStart, MPS fails.
    """
    _machine(context).inject_error(function, code, calls=calls, gpu=gpu)
    say(f"the next {calls} calls of {function} return {code}" if calls > 1 else f"the next {function} returns {code}")


@inject.command()
@click.argument("function", callback=_driver_function)
@click.argument("seconds", type=click.FloatRange(min=0, min_open=True))
@_gpu_option
@click.pass_context
def latency(context: click.Context, function: str, seconds: float, gpu: int | None) -> None:
    """Delay every call of a driver function.

    FUNCTION is a function of NVML or of the CUDA driver. Each call takes SECONDS longer until `tranche sim inject NAME
    clear`.
    """
    _machine(context).inject_latency(function, seconds, gpu=gpu)
    say(f"{function} takes {seconds:g} s longer")


@inject.command()
@click.argument("gpu", type=click.IntRange(0))
@click.argument("code", type=click.IntRange(1))
@click.pass_context
def xid(context: click.Context, gpu: int, code: int) -> None:
    """Report an XID error on a GPU.

    Programs that wait for events receive the XID number CODE.
    """
    _machine(context).inject_xid(gpu, code)
    say(f"XID {code} on GPU {gpu}")


@inject.command()
@click.argument("gpu", type=click.IntRange(0))
@click.pass_context
def lost(context: click.Context, gpu: int) -> None:
    """Make a GPU fall off the bus.

    The GPU stays lost until `tranche sim inject NAME clear`.
    """
    _machine(context).inject_lost(gpu)
    say(f"GPU {gpu} is lost")


@inject.command()
@click.argument("target", metavar="GPU|UUID")
@click.option(
    "--pid", metavar="PID", type=click.IntRange(1), default=_PHANTOM_PID, show_default=True, help="Pid of the client."
)
@click.option(
    "--memory",
    metavar="AMOUNT",
    default="64Mi",
    show_default=True,
    help="GPU memory of the client, such as 512Mi or 4G.",
)
@click.pass_context
def busy(context: click.Context, target: str, pid: int, memory: str) -> None:
    """Add a client without a process to a GPU or slice.

    The client stays until `tranche sim inject NAME clear`. The target is a GPU index, a GPU UUID or a MIG UUID.
    """
    machine = _machine(context)
    uuid = target_uuid(machine, target)
    machine.inject_busy(uuid, pid=pid, memory=parse_memory(memory))
    say(f"process {pid} uses {uuid}")


@inject.command("stuck-mode")
@click.argument("gpu", type=click.IntRange(0))
@click.pass_context
def stuck_mode(context: click.Context, gpu: int) -> None:
    """Keep MIG mode changes of a GPU pending.

    They stay pending until `tranche sim inject NAME clear`.
    """
    _machine(context).inject_stuck_mode(gpu)
    say(f"changes of MIG mode on GPU {gpu} stay pending")


@inject.command()
@click.pass_context
def clear(context: click.Context) -> None:
    """Remove all injected faults."""
    _machine(context).clear_injections()
    say("no injected faults are left")
