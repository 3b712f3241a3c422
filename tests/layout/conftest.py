"""A simulated machine with its own state folder, and the command line that works on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.machines import process_environment, talking_to
from tests.support import in_process
from tranche.core.state import GpuState, NodeState
from tranche.hardware.nvml import NvmlDriver
from tranche_simulator import SimulatedMachine

_MAIN = "from tranche.cli.main import main; main()"


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def data(self) -> Any:
        """The JSON on stdout."""
        return json.loads(self.stdout)


class Bench:
    """One simulated machine in a folder of its own."""

    def __init__(self, machine: SimulatedMachine, folder: Path) -> None:
        self.machine = machine
        self.folder = folder

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment of commands on this machine."""
        inherited = {n: v for n, v in process_environment(self.machine).items() if not n.startswith("MIG_PARTED_")}
        return {**inherited, "TRANCHE_STATE_DIR": str(self.folder / "state"), **variables}

    def layout(self, *arguments: str, stdin: str = "", **variables: str) -> Outcome:
        """Run `tranche layout ARGUMENTS`."""
        done = in_process.run(
            ["layout", *arguments],
            self.environment(**variables),
            stdin=stdin.encode(),
            seconds=120,
        )
        assert done.code is not None, (
            f"`tranche layout {' '.join(arguments)}` does not end: {done.stdout} {done.stderr}"
        )
        return Outcome(done.code, done.stdout, done.stderr)

    def command(self, *arguments: str) -> list[str]:
        """The command line of `tranche layout ARGUMENTS`."""
        return [sys.executable, "-c", _MAIN, "layout", *arguments]

    def apply(self, *arguments: str, **variables: str) -> Outcome:
        """Run `tranche layout apply ARGUMENTS`, which must succeed."""
        outcome = self.layout("apply", *arguments, **variables)
        assert outcome.code == 0, outcome.stderr
        return outcome

    def file(self, text: str, name: str = "layouts.yaml") -> str:
        """A file with that text; its path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def observe(self) -> NodeState:
        """The machine as the driver shows it."""
        with talking_to(self.machine):
            driver = NvmlDriver()
            try:
                return driver.observe()
            finally:
                driver.close()


def cut_of(gpu: GpuState) -> dict[str, str]:
    """UUID of each MIG device -> its profile and place."""
    return {
        ci.uuid: f"{ci.name} in {instance.placement}" for instance in gpu.instances for ci in instance.compute_instances
    }


def cuts(node: NodeState) -> list[dict[str, str]]:
    """The same for every GPU."""
    return [cut_of(gpu) for gpu in node]


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    """Makes a machine of a type (`p5.48xlarge`) or of boards; its operations take no time."""

    def make(machine_type: str = "", *, boards: tuple[str, ...] = ()) -> Bench:
        machine = SimulatedMachine.create(
            "m", machine_type=machine_type, boards=boards, root=tmp_path / "machines", time_scale=0.0
        )
        return Bench(machine, tmp_path)

    return make
