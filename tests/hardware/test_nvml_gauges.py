"""What the driver's gauges say of GPUs and slices; and where it has none there is no value, never 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pynvml
import pytest

from tests.simulator.machines import create, enable_mig, gpu, make_machine, span, talking_to
from tranche.core.readings import NOT_MEASURED, ActivityReading, GpuReading
from tranche.core.state import GpuInstance, NodeState
from tranche.hardware.nvml import NvmlDriver
from tranche.hardware.nvml_errors import NVML_ERRORS
from tranche.hardware.nvml_gauges import NvmlGaugeReader
from tranche_simulator import SimulatedMachine

MIB = 1 << 20


class Seconds:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self, step: float = 1.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@contextmanager
def cut(folder: Path, board: str, *profiles: int) -> Iterator[tuple[SimulatedMachine, Callable[[], NodeState]]]:
    """A board in MIG mode with spanning instances of these profile IDs, and how to observe it."""
    machine = make_machine(folder, board)
    with talking_to(machine), closing(NvmlDriver()) as driver:
        enable_mig(machine)
        for profile in profiles:
            span(create(gpu(), profile))
        yield machine, driver.observe


def only(readings: tuple[GpuReading, ...]) -> GpuReading:
    (reading,) = readings
    return reading


def uuid_of(instance: GpuInstance) -> str:
    assert instance.whole_slice is not None
    return instance.whole_slice.uuid


def test_an_a100_shows_memory_of_its_slices_and_no_activity(tmp_path: Path) -> None:
    with cut(tmp_path, "A100-40GB", 19, 9) as (machine, observe):
        gauges, node = NvmlGaugeReader(Seconds()), observe()
        small, large = sorted(node.gpus[0].instances, key=lambda each: each.profile)
        with machine.attached(uuid_of(small), memory=100 * MIB, utilization=70):
            for _ in range(2):
                reading = only(gauges.read(node))
        assert reading.slices[small.id].memory_total == 4864 * MIB
        assert (reading.slices[small.id].memory_used, reading.slices[large.id].memory_used) == (100 * MIB, 0)
        assert reading.utilization is None
        assert {reading.activity, *(each.activity for each in reading.slices.values())} == {NOT_MEASURED}
        assert reading.memory_total == 40960 * MIB
        assert reading.power is not None
        assert reading.power_limit == 400.0
        assert 50 < reading.power < 400
        assert reading.temperature is not None
        assert 30 < reading.temperature < 90
        assert reading.energy is not None
        assert reading.energy > 0


def test_an_h100_shows_what_each_slice_did_since_the_last_look(tmp_path: Path) -> None:
    with cut(tmp_path, "H100-80GB-SXM", 19, 19) as (machine, observe):
        gauges, node = NvmlGaugeReader(Seconds()), observe()
        busy, idle = node.gpus[0].instances
        with machine.attached(uuid_of(busy), utilization=50):
            first = only(gauges.read(node))
            assert {each.activity for each in first.slices.values()} == {NOT_MEASURED}
            second = only(gauges.read(node))
        assert second.slices[busy.id].activity == ActivityReading(0.5, 0.5, 0.25, 0.2, 0.25)
        assert second.slices[idle.id].activity == ActivityReading(0.0, 0.0, 0.0, 0.0, 0.0)
        assert only(gauges.read(node)).slices[busy.id].activity.sm == 0.25
        assert second.activity == NOT_MEASURED


def test_looks_that_follow_too_closely_show_the_same(tmp_path: Path) -> None:
    with cut(tmp_path, "H100-80GB-SXM", 0) as (machine, observe):
        clock = Seconds()
        gauges, node = NvmlGaugeReader(clock), observe()
        (instance,) = node.gpus[0].instances
        with machine.attached(uuid_of(instance), utilization=100):
            gauges.read(node)
            gauges.read(node)
        clock.step = 0.01
        assert only(gauges.read(node)).slices[instance.id].activity.sm == 1.0


def test_a_slice_that_was_made_anew_has_no_past(tmp_path: Path) -> None:
    with cut(tmp_path, "H100-80GB-SXM", 9) as (_, observe):
        gauges = NvmlGaugeReader(Seconds())
        gauges.read(observe())
        (before,) = observe().gpus[0].instances
        pynvml.nvmlGpuInstanceDestroy(_without_compute(before))
        assert only(gauges.read(observe())).slices == {}
        span(create(gpu(), 9, before.placement.start))
        after = only(gauges.read(observe()))
        assert after.slices[before.id].activity == NOT_MEASURED
        assert only(gauges.read(observe())).slices[before.id].activity.sm == 0.0


def test_an_instance_that_is_gone_since_the_look_has_no_values_and_is_no_error(tmp_path: Path) -> None:
    with cut(tmp_path, "H100-80GB-SXM", 9) as (_, observe):
        gauges, node = NvmlGaugeReader(Seconds()), observe()
        before = NVML_ERRORS.counts()
        pynvml.nvmlGpuInstanceDestroy(_without_compute(node.gpus[0].instances[0]))
        (reading,) = only(gauges.read(node)).slices.values()
        assert (reading.memory_total, reading.memory_used, reading.activity) == (None, None, NOT_MEASURED)
        assert NVML_ERRORS.counts() == before


def test_a_gpu_that_is_not_cut_shows_its_utilization(tmp_path: Path) -> None:
    for board, sm in (("A100-40GB", None), ("H100-80GB-SXM", 0.4)):
        machine = make_machine(tmp_path, board, name=board)
        with (
            talking_to(machine),
            closing(NvmlDriver()) as driver,
            machine.attached(driver.observe().gpus[0].uuid, utilization=40),
        ):
            gauges, node = NvmlGaugeReader(Seconds()), driver.observe()
            gauges.read(node)
            reading = only(gauges.read(node))
            assert (reading.utilization, reading.activity.sm) == (0.4, sm)


def test_an_instance_without_compute_instances_has_no_memory_gauge(tmp_path: Path) -> None:
    with cut(tmp_path, "A100-40GB") as (_, observe):
        create(gpu(), 9)
        (reading,) = only(NvmlGaugeReader(Seconds()).read(observe())).slices.values()
        assert (reading.memory_total, reading.memory_used) == (None, None)


@pytest.mark.parametrize("fails", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature"])
def test_one_gauge_that_fails_is_counted_and_takes_no_other_with_it(tmp_path: Path, fails: str) -> None:
    with cut(tmp_path, "A100-40GB", 19) as (machine, observe):
        machine.inject_error(fails, pynvml.NVML_ERROR_UNKNOWN)
        before = NVML_ERRORS.counts().get("UNKNOWN", 0)
        reading = only(NvmlGaugeReader(Seconds()).read(observe()))
        assert NVML_ERRORS.counts()["UNKNOWN"] == before + 1
        assert (reading.power is None, reading.temperature is None) == ("Power" in fails, "Temperature" in fails)
        assert reading.memory_used is not None


def test_a_lost_gpu_has_no_readings_and_counts_as_an_error_of_the_driver(tmp_path: Path) -> None:
    with cut(tmp_path, "A100-40GB", 19) as (machine, observe):
        gauges, node = NvmlGaugeReader(Seconds()), observe()
        machine.inject_lost(0)
        before = NVML_ERRORS.counts().get("GPU_IS_LOST", 0)
        assert gauges.read(observe()) == ()
        assert NVML_ERRORS.counts()["GPU_IS_LOST"] == before + 1
        assert only(gauges.read(node)) == GpuReading(node.gpus[0].uuid), "lost since the look"


def _without_compute(instance: GpuInstance) -> object:
    handle = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), instance.id)
    for each in instance.compute_instances:
        pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(handle, each.id))
    return handle
