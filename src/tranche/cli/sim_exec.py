"""`tranche sim exec`: a command to which a simulated machine's driver is this host's."""

from __future__ import annotations

import os
import shutil

import click

from tranche.cli.output import say
from tranche.cli.runtime import TrancheCommand
from tranche.core.errors import CommandNotFound
from tranche_simulator import SimulatedMachine


@click.command("exec", cls=TrancheCommand)
@click.argument("name")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
def exec_(name: str, command: tuple[str, ...]) -> int:
    """Run a command that finds machine NAME's driver on this host: NVML and the files around it.

    It finds the library and nvidia-smi, and the machine's GPUs in /proc/driver/nvidia, /proc/modules, /proc/devices and
    on the PCI bus in /sys, in a mount namespace of its own. Programs that look for the driver there find one.
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
