"""`tranche sim`: simulated machines that unmodified NVML programs take for real ones, clients of their GPUs, and faults."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from tranche.cli.output import print_json, print_table, say, warn
from tranche.cli.runtime import Settings, TrancheCommand, TrancheGroup, output_option
from tranche.core.errors import CommandNotFound, GpuNotFound, SimulatorError, UsageError
from tranche.core.quantity import parse_memory
from tranche.local.child import run_child
from tranche_simulator import MACHINE_TYPES, SimulatedMachine
from tranche_simulator import SimulatorError as MachineError
from tranche_simulator.library import can_fail, special_faults

Machine = Callable[[], SimulatedMachine]
"""Opens the machine that faults are for."""


@click.group("sim", cls=TrancheGroup)
def command() -> None:
    """Create and control simulated machines.

    A simulated machine consists of a state file, a libnvidia-ml.so.1 and an nvidia-smi. Programs with the variables
    from `tranche sim env` see its GPUs, and need neither a driver nor a GPU.
    """


@command.command()
@click.argument("name", required=False)
@click.option(
    "--machine", "machine_type", metavar="TYPE", help="Machine type, such as p4d.24xlarge or a30-server. Default: NAME."
)
@click.option(
    "--gpu",
    "boards",
    metavar="BOARD",
    multiple=True,
    help="Board in the catalogue, instead of --machine; repeat for more GPUs.",
)
@click.option(
    "--time-scale",
    metavar="FACTOR",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Duration of driver operations, relative to hardware; 0 for no delay.",
)
@click.option("--driver", metavar="VERSION", help="Version of the driver. Default: 580.95.05.")
def create(
    name: str | None, machine_type: str | None, boards: tuple[str, ...], time_scale: float, driver: str | None
) -> None:
    """Create a simulated machine.

    NAME defaults to the machine type.
    """
    if not machine_type and not boards and not name:
        raise UsageError("which machine?", hint=f"give a type ({', '.join(MACHINE_TYPES)}), or its boards with --gpu")
    machine = SimulatedMachine.create(
        name or "",
        machine_type=machine_type or ("" if boards else name or ""),
        boards=boards,
        time_scale=time_scale,
        driver=driver or "",
    )
    say(f"created {machine.name} with {_count(len(machine.gpus()), 'GPU')}; use it in a shell with")
    say(f'  eval "$(tranche sim env {shlex.quote(machine.name)})"')


@command.command()
@click.argument("name")
def destroy(name: str) -> None:
    """Remove a simulated machine and its state.

    Running programs lose the machine's driver.
    """
    SimulatedMachine.open(name).destroy()
    say(f"destroyed {name}")


@command.command("list")
@output_option()
def list_machines(output: str) -> None:
    """List simulated machines."""
    machines = list(_readable())
    if output == "json":
        print_json("SimulatedMachineList", items=[_describe(machine) for machine in machines])
        return
    print_table(("NAME", "GPUS", "SLICES", "CLIENTS", "TIME SCALE"), [_row(machine) for machine in machines])


@command.command()
@click.argument("name")
@click.option(
    "--shell",
    type=click.Choice(["sh", "fish", "json"]),
    default="sh",
    show_default=True,
    help="Syntax of the output.",
)
def env(name: str, shell: str) -> None:
    """Print the environment variables for a simulated machine.

    Programs with these variables use the simulated machine.

    \b
    $ eval "$(tranche sim env p4d.24xlarge)"
    """
    variables = SimulatedMachine.open(name).environment()
    if shell == "json":
        click.echo(json.dumps(variables, indent=2))
        return
    line: Callable[[str, str], str] = _fish_line if shell == "fish" else _sh_line
    for variable, value in variables.items():
        click.echo(line(variable, value))


@command.command()
@click.argument("name")
def reboot(name: str) -> None:
    """Reboot a simulated machine.

    Instances and clients disappear, and pending MIG modes become current.
    """
    SimulatedMachine.open(name).reboot()
    say(f"rebooted {name}")


def _readable() -> Iterator[SimulatedMachine]:
    """The machines with readable state; warns of each other one, since the rest are not its fault."""
    for machine in SimulatedMachine.list():
        try:
            machine.gpus()
        except MachineError as error:
            warn(f"skipping {machine.name}: {error.message}")
        else:
            yield machine


def _row(machine: SimulatedMachine) -> tuple[object, ...]:
    gpus = machine.gpus()
    boards = Counter(gpu.board for gpu in gpus)
    return (
        machine.name,
        ", ".join(f"{count}x {board}" for board, count in boards.items()),
        sum(gpu.compute_instances for gpu in gpus),
        len(machine.clients()),
        f"{machine.time_scale:g}",
    )


def _describe(machine: SimulatedMachine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "state": str(machine.state),
        "timeScale": machine.time_scale,
        "boots": machine.boots,
        "clients": len(machine.clients()),
        "gpus": [
            {
                "index": gpu.index,
                "board": gpu.board,
                "name": gpu.name,
                "uuid": gpu.uuid,
                "busId": gpu.bus_id,
                "migMode": {"current": gpu.mig_current, "pending": gpu.mig_pending} if gpu.mig_supported else None,
                "gpuInstances": gpu.gpu_instances,
                "computeInstances": gpu.compute_instances,
                "lost": gpu.lost,
            }
            for gpu in machine.gpus()
        ],
    }


def _sh_line(variable: str, value: str) -> str:
    return f"export {variable}={shlex.quote(value)}"


def _fish_line(variable: str, value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"set -gx {variable} '{quoted}'"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@command.command("exec")
@click.argument("name")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
def exec_(name: str, command: tuple[str, ...]) -> int:
    """Run a command with a simulated machine's driver files.

    The command runs in its own mount namespace, with NVML and nvidia-smi. The machine's GPUs also appear in
    /proc/driver/nvidia, /proc/modules, /proc/devices and the PCI bus in /sys, where some programs look for a driver.
    """
    from tranche_simulator.namespace import enter

    machine = SimulatedMachine.open(name)
    environment = {**os.environ, **machine.environment()}
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        raise CommandNotFound(f"{command[0]}: command not found")
    enter(machine)
    try:
        os.execve(program, command, environment)
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        return 126


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


@command.command(cls=_CommandAfterDashes, options_metavar="[OPTIONS]")
@click.argument("target", required=False, metavar="[TARGET] [-- COMMAND...]")
@click.option("--memory", metavar="AMOUNT", help="GPU memory to use on each target, such as 512Mi or 4G. Default: 0.")
@click.pass_context
def attach(context: click.Context, target: str | None, memory: str | None) -> int:
    """Use a simulated GPU or slice while a command runs.

    TARGET is a GPU index, a GPU UUID, a MIG UUID, or a comma-separated list. It defaults to $CUDA_VISIBLE_DEVICES.
    Without COMMAND, the GPU remains in use until Ctrl-C or SIGTERM. The exit code is the command's. Select the machine
    with --simulate or $TRANCHE_SIM_STATE.
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
            hint="choose one with --simulate, or set the variables of `tranche sim env`",
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
    say(f"attached to {', '.join(uuids)} as process {os.getpid()}; press Ctrl-C to end")
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


_UNKNOWN = 999  # NVML's UNKNOWN and CUDA's; a function of neither fails whatever the code
_PHANTOM_PID = 4_100_000  # near the kernel's highest pid, so that no process has it

_gpu_option = click.option("--gpu", metavar="GPU", type=click.IntRange(0), help="Index of the GPU. Default: all GPUs.")


@command.group(cls=TrancheGroup)
@click.argument("name")
@click.pass_context
def inject(context: click.Context, name: str) -> None:
    """Inject faults into a simulated machine.

    The driver of machine NAME fails, slows down or loses a GPU. Running programs are also affected.
    """
    context.obj = partial(SimulatedMachine.open, name)


def _driver_function(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    """An injection into a name that no program can call would silently do nothing."""
    if not can_fail(name):
        raise UsageError(
            f"neither NVML nor CUDA has a function '{name}'",
            hint="for example nvmlDeviceCreateGpuInstanceWithPlacement, or cuMemAlloc; special names are "
            + ", ".join(special_faults()),
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
@click.pass_obj
def error(machine: Machine, function: str, code: int, calls: int, gpu: int | None) -> None:
    """Make the next calls to a driver function fail.

    FUNCTION is a function in NVML or the CUDA driver, such as nvmlDeviceSetMigMode. Use trancheSimResetGpu to make a
    GPU reset fail, and names such as mpsServerStart to make MPS fail.
    """
    machine().inject_error(function, code, calls=calls, gpu=gpu)
    say(f"the next {calls} calls of {function} return {code}" if calls > 1 else f"the next {function} returns {code}")


@inject.command()
@click.argument("function", callback=_driver_function)
@click.argument("seconds", type=click.FloatRange(min=0, min_open=True))
@_gpu_option
@click.pass_obj
def latency(machine: Machine, function: str, seconds: float, gpu: int | None) -> None:
    """Delay each call to a driver function.

    FUNCTION is a function in NVML or the CUDA driver. Each call takes SECONDS longer until you run `tranche sim inject
    NAME clear`.
    """
    machine().inject_latency(function, seconds, gpu=gpu)
    say(f"{function} takes {seconds:g} s longer")


@inject.command()
@click.argument("gpu", type=click.IntRange(0))
@click.argument("code", type=click.IntRange(1))
@click.pass_obj
def xid(machine: Machine, gpu: int, code: int) -> None:
    """Report an XID error on a GPU.

    Programs that wait for events receive CODE as the XID number.
    """
    machine().inject_xid(gpu, code)
    say(f"XID {code} on GPU {gpu}")


@inject.command()
@click.argument("gpu", type=click.IntRange(0))
@click.pass_obj
def lost(machine: Machine, gpu: int) -> None:
    """Make a GPU fall off the bus.

    To restore the GPU, use `tranche sim inject NAME clear`.
    """
    machine().inject_lost(gpu)
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
@click.pass_obj
def busy(machine: Machine, target: str, pid: int, memory: str) -> None:
    """Make a GPU or slice busy with a client that has no process.

    To remove the client, use `tranche sim inject NAME clear`. The target is a GPU index, a GPU UUID or a MIG UUID.
    """
    found = machine()
    uuid = target_uuid(found, target)
    found.inject_busy(uuid, pid=pid, memory=parse_memory(memory))
    say(f"process {pid} uses {uuid}")


@inject.command("stuck-mode")
@click.argument("gpu", type=click.IntRange(0))
@click.pass_obj
def stuck_mode(machine: Machine, gpu: int) -> None:
    """Leave changes to a GPU's MIG mode pending.

    They remain pending until you run `tranche sim inject NAME clear`.
    """
    machine().inject_stuck_mode(gpu)
    say(f"MIG mode changes on GPU {gpu} stay pending")


@inject.command()
@click.pass_obj
def clear(machine: Machine) -> None:
    """Remove all injected faults."""
    machine().clear_injections()
    say("no injected faults are left")
