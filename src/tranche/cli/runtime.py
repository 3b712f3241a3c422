"""Opens what a command works with: the driver of the machine that is meant, and the host with its ledger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tranche.cli.settings import Settings
from tranche.hardware.simulator_errors import simulator_errors

if TYPE_CHECKING:
    from tranche.hardware.nvml import NvmlDriver
    from tranche.node.host import Host
    from tranche_simulator.machine import SimulatedMachine

_STATE_DIR = Path("/var/lib/tranche")


@contextmanager
def open_driver(settings: Settings) -> Iterator[NvmlDriver]:
    """The driver of this machine, or of the simulated one; DriverNotFound where there is none."""
    machine = simulated_machine(settings)
    reset_command = "nvidia-smi"
    if machine is not None:
        from tranche_simulator.library import preload

        with simulator_errors():
            reset_command = str(preload(machine.state).nvidia_smi)
    from tranche.hardware.nvml import NvmlDriver

    driver = NvmlDriver(reset_command=reset_command)
    try:
        yield driver
    finally:
        driver.close()


@contextmanager
def open_host(settings: Settings) -> Iterator[Host]:
    """That machine as its ledger knows it; errors of the driver and of the ledger as they are."""
    with open_driver(settings) as driver:
        from tranche.node.host import Host

        host = Host(driver, state_dir(settings))
        try:
            yield host
        finally:
            host.close()


def simulated_machine(settings: Settings) -> SimulatedMachine | None:
    """The machine that --simulate names, made at first use when the name is a machine type; None without --simulate."""
    name = settings.simulate
    if name is None:
        return None
    from tranche_simulator.errors import SimulatorError
    from tranche_simulator.machine import SimulatedMachine, machines_directory

    state = machines_directory() / name / "state"
    with simulator_errors():
        if not os.path.exists(state):
            from tranche_simulator.machines import MACHINE_TYPES

            if name in MACHINE_TYPES:
                try:
                    return SimulatedMachine.create(name, machine_type=name)
                except SimulatorError:
                    # Another command may have made it meanwhile; if that is not the reason, open() says what is wrong.
                    if not os.path.exists(state):
                        raise
        return SimulatedMachine.open(name)


def state_dir(settings: Settings) -> Path:
    """Where the ledger is: --state-dir, TRANCHE_STATE_DIR, beside a simulated machine's state, else /var/lib/tranche."""
    chosen = settings.state_dir or os.environ.get("TRANCHE_STATE_DIR")
    if chosen:
        return Path(chosen)
    simulated = os.environ.get("TRANCHE_SIM_STATE")
    machine = simulated_machine(settings)
    if machine is not None:
        return machine.directory / "tranche"
    return Path(simulated).parent / "tranche" if simulated else _STATE_DIR


def child_environment(settings: Settings) -> dict[str, str]:
    """This process's environment, with what makes a child see the simulated machine where one is meant."""
    machine = simulated_machine(settings)
    return {**os.environ, **(machine.environment() if machine is not None else {})}
