"""`tranche sim`: simulated machines that unmodified NVML programs take for real ones."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import click

from tranche.cli.output import print_json, print_table, say, warn
from tranche.cli.runtime import TrancheGroup, output_option
from tranche.cli.sim_attach import attach
from tranche.cli.sim_inject import inject
from tranche.core.errors import CommandNotFound, UsageError
from tranche_simulator import MACHINE_TYPES, SimulatedMachine, SimulatorError


@click.group("sim", cls=TrancheGroup)
def command() -> None:
    """Create and control simulated machines.

    A simulated machine consists of a state file, a libnvidia-ml.so.1 and an nvidia-smi. Programs that run with the
    variables of `tranche sim env` see its GPUs. They need no driver and no GPU.
    """


command.add_command(attach)
command.add_command(inject)


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
    help="Board of the catalogue, instead of --machine; repeat it for more GPUs.",
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
        raise UsageError("which machine?", hint=f"name a type ({', '.join(MACHINE_TYPES)}), or its boards with --gpu")
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

    Programs that use the machine lose its driver.
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
    """Print the variables of a simulated machine.

    Programs that run with these environment variables use the machine.

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
        except SimulatorError as error:
            warn(f"{machine.name} is left out: {error.message}")
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
    """Run a command with the driver files of a simulated machine.

    The command runs in its own mount namespace. It finds NVML, nvidia-smi and the machine's GPUs in
    /proc/driver/nvidia, /proc/modules, /proc/devices and on the PCI bus in /sys. Programs that look for a driver there
    find one.
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
