"""GPM: the utilization of each GPU instance, on boards that have the counters, by the calls that nvidia-ml-py makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from tests.simulator.machines import create, enable_mig, error_of, gpu, make_machine, mig_devices, span, talking_to
from tranche_simulator import SimulatedMachine

INVALID, NOT_SUPPORTED, MISMATCH, LOST = 2, 3, 25, 15
SM_UTIL, DRAM_BW, PCIE_TX = 2, 10, 20


@contextmanager
def cut(folder: Path, board: str, *profiles: int) -> Iterator[tuple[SimulatedMachine, Any]]:
    """A board in MIG mode with spanning instances of these profile IDs."""
    machine = make_machine(folder, board)
    with talking_to(machine):
        enable_mig(machine)
        for profile in profiles:
            span(create(gpu(), profile))
        yield machine, gpu()


def sample(device: Any, instance: int | None = None) -> Any:
    taken = nvml.nvmlGpmSampleAlloc()
    if instance is None:
        return nvml.nvmlGpmSampleGet(device, taken)
    return nvml.nvmlGpmMigSampleGet(device, instance, taken)


def asked(first: Any, second: Any, *metrics: int) -> Any:
    get = nvml.c_nvmlGpmMetricsGet_t(nvml.NVML_GPM_METRICS_GET_VERSION, len(metrics), first, second)
    for place, metric in enumerate(metrics):
        get.metrics[place].metricId = metric
    return get


def metrics(first: Any, second: Any, *numbers: int) -> list[float | None]:
    got = nvml.nvmlGpmMetricsGet(asked(first, second, *numbers))
    return [got.metrics[i].value if got.metrics[i].nvmlReturn == 0 else None for i in range(len(numbers))]


@pytest.mark.parametrize(
    ("board", "supported"),
    [("T4", False), ("A100-40GB", False), ("A30-24GB", False), ("L4", False), ("H100-80GB-SXM", True), ("B200", True)],
)
def test_hopper_and_later_have_the_counters(tmp_path: Path, board: str, supported: bool) -> None:
    with talking_to(make_machine(tmp_path, board)):
        assert nvml.nvmlGpmQueryDeviceSupport(gpu()).isSupportedDevice == int(supported)
        assert error_of(sample, gpu()) == (0 if supported else NOT_SUPPORTED)


def test_an_instance_shows_what_its_own_clients_do(tmp_path: Path) -> None:
    with cut(tmp_path, "H100-80GB-SXM", 19, 9) as (machine, h100):
        by_id = {nvml.nvmlDeviceGetGpuInstanceId(each): each for each in mig_devices(h100)}
        busy, idle = by_id
        with machine.attached(nvml.nvmlDeviceGetUUID(by_id[busy]), utilization=60):
            before = {each: sample(h100, each) for each in by_id}
            after = {each: sample(h100, each) for each in by_id}
            assert metrics(before[busy], after[busy], SM_UTIL, DRAM_BW, PCIE_TX) == [60.0, 30.0, None]
            assert metrics(before[idle], after[idle], SM_UTIL) == [0.0]
        assert metrics(after[busy], sample(h100, busy), SM_UTIL) == [30.0], "half of the time"


def test_a_compute_instance_counts_for_its_part(tmp_path: Path) -> None:
    with cut(tmp_path, "H100-80GB-SXM") as (machine, h100):
        inside = create(h100, 9)
        nvml.nvmlGpuInstanceCreateComputeInstance(inside, 0)
        (device,) = mig_devices(h100)
        instance = nvml.nvmlGpuInstanceGetInfo(inside).id
        with machine.attached(nvml.nvmlDeviceGetUUID(device), utilization=90):
            assert metrics(sample(h100, instance), sample(h100, instance), SM_UTIL) == [pytest.approx(30.0)]


def test_a_gpu_that_is_not_cut_is_sampled_whole(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "H100-80GB-SXM")
    with talking_to(machine), machine.attached(machine.gpus()[0].uuid, utilization=80):
        assert metrics(sample(gpu()), sample(gpu()), SM_UTIL) == [80.0]
        assert error_of(sample, gpu(), 1) == NOT_SUPPORTED


def test_what_cannot_be_sampled_is_refused(tmp_path: Path) -> None:
    with cut(tmp_path, "H100-80GB-SXM", 19, 19) as (machine, h100):
        one, other = (nvml.nvmlDeviceGetGpuInstanceId(each) for each in mig_devices(h100))
        assert error_of(sample, h100) == NOT_SUPPORTED, "the whole GPU, under MIG"
        assert error_of(sample, h100, 0) == INVALID, "no such instance"
        assert error_of(sample, mig_devices(h100)[0], one) == NOT_SUPPORTED
        first, second, of_other = sample(h100, one), sample(h100, one), sample(h100, other)
        for wrong in ((first, of_other), (second, first), (first, nvml.nvmlGpmSampleAlloc())):
            assert error_of(metrics, *wrong, SM_UTIL) == INVALID
        old = asked(first, second, SM_UTIL)
        old.version = 2
        assert error_of(nvml.nvmlGpmMetricsGet, old) == MISMATCH
        for taken in (first, second, of_other):
            nvml.nvmlGpmSampleFree(taken)
        machine.inject_lost(0)
        assert error_of(sample, h100, one) == LOST
