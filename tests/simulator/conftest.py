"""Fixtures of the simulator's tests: a machine of one A100, and the same with NVML talking to it in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.machines import enable_mig, gpu, make_machine, talking_to
from tranche_simulator import SimulatedMachine


@pytest.fixture
def machine(tmp_path: Path) -> SimulatedMachine:
    """One A100-40GB, MIG off."""
    return make_machine(tmp_path)


@pytest.fixture
def a100(machine: SimulatedMachine) -> Iterator[Any]:
    """NVML's handle of that A100, MIG on."""
    with talking_to(machine):
        enable_mig(machine)
        yield gpu()
