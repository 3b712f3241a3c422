"""Runs the nvidia-smi of a simulated machine, found on the PATH that the machine gives."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tranche_simulator import GpuSpec, SimulatedMachine

MIG_BOARDS = ("A30-24GB", "A100-40GB", "A100-80GB", "H100-80GB-SXM", "H200-141GB", "B200", "RTX-PRO-6000-96GB")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one run printed, and its exit code."""

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


@dataclass(frozen=True, slots=True)
class Smi:
    """Calls nvidia-smi on one machine."""

    machine: SimulatedMachine
    extra: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str) -> Answer:
        environment = {**os.environ, **self.machine.environment(), "TZ": "UTC", **self.extra}
        program = shutil.which("nvidia-smi", path=environment["PATH"])
        assert program is not None
        done = subprocess.run(
            [program, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
        )
        return Answer(done.returncode, done.stdout)

    def succeed(self, *arguments: str) -> str:
        """The output of a run that must succeed."""
        answer = self(*arguments)
        assert answer.code == 0, answer.text
        return answer.text

    def enable_mig(self) -> None:
        """MIG mode on every GPU, with the reset that Ampere needs."""
        self.succeed("-mig", "1")
        self.succeed("--gpu-reset")
        modes = self.succeed("--query-gpu=mig.mode.current", "--format=csv,noheader").split()
        assert set(modes) == {"Enabled"}


def make_smi(root: Path, *boards: str, name: str = "bench") -> Smi:
    """A machine with these boards whose operations take no time, and its nvidia-smi."""
    return Smi(SimulatedMachine.create(name, boards=boards, root=root, time_scale=0.0))


def smi_of_swapped_a100(root: Path) -> Smi:
    """An A100 whose die is turned as in the published listing that the tests follow: GI ids 2, 3 and 9."""
    gpu = GpuSpec("A100-40GB", swapped=True, pci=(0, 0x10, 0x1C))
    return Smi(SimulatedMachine.create("swapped", gpus=(gpu,), root=root, time_scale=0.0))


def without_date(text: str) -> str:
    """The main table with its first line, the time of the run, replaced."""
    first, _, rest = text.partition("\n")
    assert len(first.rstrip()) == len("Tue Feb 17 16:58:38 2026"), first
    return "DATE\n" + rest
