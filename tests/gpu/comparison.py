"""Compares what a driver answers with what the simulator answers for the same board, and explains what is known to differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.probe import Answers

# Differences that a real card may rightly show, and why. Everything else is a defect of the simulator or the catalogue.
EXPLAINED: Mapping[str, str] = {
    "CUDA version": "drivers of several CUDA releases serve the same boards",
    "serial": "virtual machines may hide the serial number",
    "PCI bus id": "virtual machines may renumber the bus",
    "PCI subsystem": "one product is sold on several cards; the catalogue has one of them",
    "addressing mode": "it depends on the kernel and its modules too",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One question that two NVML libraries answer differently."""

    question: str
    real: Any
    simulated: Any

    @property
    def explanation(self) -> str:
        """Why this may differ; empty when it may not."""
        return EXPLAINED.get(self.question, "")

    def __str__(self) -> str:
        why = f" (explained: {self.explanation})" if self.explanation else ""
        return f"{self.question}: the driver says {self.real}, the simulator {self.simulated}{why}"


def differences(real: Answers, simulated: Answers) -> list[Difference]:
    """Every question that the two answer differently, or that only one of them was asked."""
    return [
        Difference(question, real.get(question, "not asked"), simulated.get(question, "not asked"))
        for question in sorted(real.keys() | simulated.keys())
        if real.get(question, "not asked") != simulated.get(question, "not asked")
    ]


def probe_in_process(environment: Mapping[str, str], index: int) -> Answers:
    """The probe's answers in a process of its own, so that it loads the library that its environment names."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.probe", str(index)],
        env={**os.environ, **environment},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answers: Answers = json.loads(done.stdout)
    return answers
