"""What a real driver answers, beside the simulator and the catalogue. Reads only; skipped where there is no NVIDIA driver."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.gpu.comparison import differences, probe_in_process
from tranche.core.board import Board, GpuInstanceProfile, board_by_pci_id
from tranche.core.state import GpuState, MigMode, NodeState
from tranche.hardware.nvml_gauges import LEAST_SECONDS
from tranche_simulator.machine import SimulatedMachine

_COUNT = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"


def _real_gpus() -> tuple[int, str]:
    """How many GPUs the machine's own driver shows, and why none if none."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRANCHE_SIM")}
    done = subprocess.run(
        [sys.executable, "-c", _COUNT], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode == 0:
        return int(done.stdout), "the driver shows no GPU"
    return 0, "no NVIDIA driver: " + (done.stderr.strip().splitlines() or ["unknown"])[-1]


@pytest.fixture(scope="module")
def real() -> NodeState:
    count, why = _real_gpus()
    if count == 0:
        pytest.skip(why)
    from tranche.hardware.nvml import NvmlDriver

    driver = NvmlDriver()
    try:
        return driver.observe()
    finally:
        driver.close()


@pytest.fixture
def twin(real: NodeState, tmp_path: Path) -> Iterator[tuple[GpuState, SimulatedMachine]]:
    """The first real GPU that can be cut, and a simulated machine with the same board."""
    gpu = next((gpu for gpu in real if board_by_pci_id(gpu.pci_device_id) is not None), None)
    if gpu is None:
        pytest.skip(f"no GPU on this machine is in the catalogue: {[gpu.name for gpu in real]}")
    board = _board(gpu)
    machine = SimulatedMachine.create("twin", boards=[board.key], root=tmp_path, time_scale=0)
    if gpu.mode is MigMode.ENABLED:
        subprocess.run(["nvidia-smi", "-mig", "1"], env={**os.environ, **machine.environment()}, check=True)
        subprocess.run(["nvidia-smi", "--gpu-reset"], env={**os.environ, **machine.environment()}, check=True)
    yield gpu, machine
    machine.destroy()


@pytest.mark.gpu
def test_the_simulator_answers_as_the_driver_does(twin: tuple[GpuState, SimulatedMachine]) -> None:
    """Every read-only answer agrees, or its difference is one that is explained."""
    gpu, machine = twin
    found = differences(probe_in_process({}, gpu.index), probe_in_process(machine.environment(), 0))
    for difference in found:
        print(difference)
    assert [str(difference) for difference in found if not difference.explanation] == []


@pytest.mark.gpu
def test_the_catalogue_has_what_the_driver_reports(real: NodeState) -> None:
    """Each profile of each catalogued GPU: number, memory, multiprocessors, engines, count and placements."""
    wrong = [line for gpu in real if gpu.profiles_source == "driver" for line in _catalogue_differences(gpu)]
    for line in wrong:
        print(line)
    assert wrong == []


@pytest.mark.gpu
def test_the_gauges_of_a_real_driver_can_be_read(real: NodeState) -> None:
    """Memory and power of each GPU that answers; and on Hopper and later, not cut, what it did between two looks."""
    from tranche.hardware.nvml import NvmlDriver
    from tranche.hardware.nvml_gauges import NvmlGaugeReader

    with closing(NvmlDriver()):
        gauges = NvmlGaugeReader(time.monotonic)
        gauges.read(real)
        time.sleep(2 * LEAST_SECONDS)
        readings = {each.gpu_uuid: each for each in gauges.read(real)}
    for gpu in real:
        if not gpu.lost:
            reading = readings[gpu.uuid]
            print(reading)
            assert reading.memory_total == gpu.memory
            assert reading.memory_used is not None
            assert reading.power is not None
            if gpu.architecture in ("Hopper", "Blackwell") and not gpu.mig_enabled:
                assert reading.activity.sm is not None


def _board(gpu: GpuState) -> Board:
    board = board_by_pci_id(gpu.pci_device_id)
    assert board is not None
    return board


def _catalogue_differences(gpu: GpuState) -> list[str]:
    board = board_by_pci_id(gpu.pci_device_id)
    if board is None:
        return []
    lines = []
    for reported in gpu.profiles:
        known = board.profile(reported.name)
        if known is None:
            lines.append(f"{gpu.label} ({gpu.name}): {reported.name} is not in the catalogue")
            continue
        for field in ("enum", "id", "slices", "memory", "sm", "copy_engines", "decoders", "encoders", "jpeg", "ofa"):
            lines += _field_difference(gpu, reported, known, field)
        for field in ("max_instances", "starts", "size"):
            lines += _field_difference(gpu, reported, known, field)
    return lines


def _field_difference(gpu: GpuState, reported: GpuInstanceProfile, known: GpuInstanceProfile, field: str) -> list[str]:
    says, has = getattr(reported, field), getattr(known, field)
    if says == has or has is None or (field == "memory" and says in known.other_memory):
        return []
    return [f"{gpu.label} ({gpu.name}): {reported.name} {field}: the driver reports {says}, the catalogue {has}"]
