"""The demo's own temporary machine: a simulated p4d.24xlarge in a folder."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tranche.core.errors import SimulatorError
from tranche.hardware.nvml import NvmlDriver
from tranche.node.host import Host
from tranche_simulator.build import ensure_built
from tranche_simulator.machine import SimulatedMachine

MACHINE_TYPE = "p4d.24xlarge"
JOB_MEMORY_MIB = 2048
_LIMITING_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "TRANCHE_SIM_TIME_SCALE", "TRANCHE_SIM_UNPRIVILEGED")


@dataclass(frozen=True, slots=True)
class _DemoMachine:
    """The machine's host, the environment of its jobs, and the program that they run."""

    host: Host
    environment: Mapping[str, str]
    job_program: Path
    nvidia_smi: Path

    @property
    def look(self) -> str:
        """The shell command that shows the machine from another terminal."""
        state = self.environment["TRANCHE_SIM_STATE"]
        return f"TRANCHE_SIM_STATE={shlex.quote(state)} {shlex.quote(str(self.nvidia_smi))}"

    def job_command(self, real_seconds: float) -> tuple[str, ...]:
        """A job that uses its share for that many real seconds."""
        return (str(self.job_program), f"{real_seconds:.6f}", str(JOB_MEMORY_MIB))


@contextmanager
def demo_machine(time_scale: float) -> Iterator[_DemoMachine]:
    """A machine with operations at `time_scale` of their time on hardware, removed when the block ends.

    From then on this process sees no other driver, and all of this machine, whatever its environment said.

    Raises:
        tranche_simulator.SimulatorError: it cannot be built.
        SimulatorError: its folder cannot be used.
    """
    with _folder() as root:
        machine = SimulatedMachine.create(machine_type=MACHINE_TYPE, root=root, time_scale=time_scale)
        for variable in _LIMITING_VARIABLES:
            os.environ.pop(variable, None)
        machine.preload()
        built = ensure_built()
        driver = NvmlDriver(reset_command=str(built.nvidia_smi))
        try:
            host = Host(driver, root / "tranche")
            try:
                yield _DemoMachine(host, {**os.environ, **machine.environment()}, built.job, built.nvidia_smi)
            finally:
                host.close()
        finally:
            driver.close()


@contextmanager
def _folder() -> Iterator[Path]:
    try:
        made = tempfile.TemporaryDirectory(prefix="tranche-demo-")
    except OSError as error:
        raise SimulatorError(
            f"cannot create a directory for the demo: {error.strerror}", hint="set TMPDIR to a writable directory"
        ) from error
    with made as folder:
        yield Path(folder)
