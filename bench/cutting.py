"""How long it takes to cut eight GPUs into 56 slices: Tranche's plan, against clearing and creating one after the other.

The simulator's operations take as long as on hardware. The baseline does what mig-parted does once MIG mode is on: GPU by GPU,
destroy every instance that is there, then create each GPU instance and its compute instance. It makes the same NVML calls by the
same code, and keeps no record of what it did.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import pynvml

from bench.report import Report
from tranche.core.allocation import NodeView
from tranche.core.grid import Placement
from tranche.core.layout import Layout
from tranche.core.profile import parse_profile
from tranche.core.state import NodeState
from tranche.hardware.nvml import NvmlDriver
from tranche.node.host import Host
from tranche.planning.layouts.named_layouts import generate_layouts
from tranche.planning.layouts.reconfigure import plan_layout
from tranche.planning.steps.plan import Plan
from tranche_simulator.build import ensure_built
from tranche_simulator.machine import SimulatedMachine

MACHINE = "p4d.24xlarge"
TARGET_LAYOUT = "all-1g.5gb"
STARTS = {"MIG mode on, no slices": "all-enabled", "`all-balanced`, 32 slices": "all-balanced"}
OUR_RUNS = 5
BASELINE_RUNS = 2
TARGET = 6.0
_SLICE, _SLICES_PER_GPU = parse_profile("1g.5gb"), 7
_CHANGING = (
    "nvmlDeviceCreateGpuInstance",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
)


class Run(NamedTuple):
    """One cut: seconds in all, and seconds in NVML's changing calls on the busiest GPU."""

    seconds: float
    nvml: float


def run(report: Report) -> None:
    """Measure both from a machine without instances and from one that is cut all-balanced."""
    rows, ratios = [], []
    with _machine() as (machine, host, driver):
        layouts = generate_layouts(host.view().node)
        target = layouts.select(TARGET_LAYOUT)
        for title, name in STARTS.items():
            start = layouts.select(name)
            ours = [_measured(machine, host, start, partial(_apply, host, target)) for _ in range(OUR_RUNS)]
            theirs = [
                _measured(machine, host, start, partial(_clear_then_create, driver)) for _ in range(BASELINE_RUNS)
            ]
            mine, baseline = (median(each.seconds for each in runs) for runs in (ours, theirs))
            overhead = 1000 * median(each.seconds - each.nvml for each in ours)
            ratios.append(baseline / mine)
            rows.append([title, f"{mine:.2f} s", f"{baseline:.2f} s", f"{ratios[-1]:.1f}", f"{overhead:.0f} ms"])
    report.section(
        "Partitioning eight A100 GPUs into 56 slices",
        f"The machine is a simulated {MACHINE}. Times are medians of {OUR_RUNS} runs, or of {BASELINE_RUNS} for the baseline.",
        "The baseline is a model of mig-parted: one GPU at a time, it destroys the instances and creates the new ones.",
    )
    report.table(["from", "Tranche", "one at a time", "ratio", "Tranche's own work"], rows)
    report.verdict(f"Tranche is at least {TARGET:g} times as fast.", min(ratios) >= TARGET)


@contextmanager
def _machine() -> Iterator[tuple[SimulatedMachine, Host, NvmlDriver]]:
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        machine = SimulatedMachine.create(machine_type=MACHINE, root=Path(folder), time_scale=0.0)
        machine.preload()
        driver = NvmlDriver(reset_command=str(ensure_built().nvidia_smi))
        host = Host(driver, Path(folder) / "tranche")
        try:
            yield machine, host, driver
        finally:
            host.close()
            driver.close()
            os.environ.clear()
            os.environ.update(before)


def _apply(host: Host, layout: Layout) -> None:
    def decide(view: NodeView) -> Plan:
        decision = plan_layout(view, layout)
        decision.refuse_if_blocked()
        return decision.plan

    host.change(decide)


def _measured(machine: SimulatedMachine, host: Host, start: Layout, cut: Callable[[], None]) -> Run:
    """Cut from the start layout with operations as long as on hardware, and check that the slices are there."""
    machine.set_time_scale(0.0)
    _apply(host, start)
    machine.set_time_scale(1.0)
    with _timed_calls() as spent:
        begun = perf_counter()
        cut()
        seconds = perf_counter() - begun
    _check(host.view().node)
    return Run(seconds, max(spent.values()))


def _check(node: NodeState) -> None:
    for gpu in node:
        slices = [str(name) for instance in gpu.instances for name in instance.slices]
        if slices != [str(_SLICE)] * _SLICES_PER_GPU:
            raise AssertionError(f"{gpu.label} was not cut as asked: {slices}")


@contextmanager
def _timed_calls() -> Iterator[dict[int, float]]:
    """The seconds of each changing NVML call while the block runs, by thread; Tranche has one thread for each GPU."""
    spent: dict[int, float] = defaultdict(float)
    originals: dict[str, Any] = {name: getattr(pynvml, name) for name in _CHANGING}

    def timed(original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            begun = perf_counter()
            try:
                return original(*arguments)
            finally:
                spent[threading.get_ident()] += perf_counter() - begun

        return call

    for name, original in originals.items():
        setattr(pynvml, name, timed(original))
    try:
        yield spent
    finally:
        for name, original in originals.items():
            setattr(pynvml, name, original)


def _clear_then_create(driver: NvmlDriver) -> None:
    """The baseline."""
    for gpu in driver.observe():
        for instance in gpu.instances:
            for compute in instance.compute_instances:
                driver.destroy_compute_instance(gpu.uuid, instance.id, compute.id)
            driver.destroy_gpu_instance(gpu.uuid, instance.id)
        for start in range(_SLICES_PER_GPU):
            number = driver.create_gpu_instance(gpu.uuid, _SLICE, Placement(start, 1))
            driver.create_compute_instance(gpu.uuid, number, _SLICE)
