"""How long it takes to cut eight GPUs into 56 slices: Tranche's plan, against clearing and creating one after the other.

The simulator's operations take as long as on hardware. The baseline does what mig-parted does once MIG mode is on: GPU by GPU,
destroy every instance that is there, then create each GPU instance and its compute instance. It makes the same NVML calls by the
same code, and keeps no record of what it did.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

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
STARTS = {"MIG mode on, nothing cut": "all-enabled", "cut all-balanced": "all-balanced"}
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


@dataclass(frozen=True, slots=True)
class Run:
    """One cut: seconds in all, seconds in NVML's changing calls on the busiest GPU, and how many such calls there were."""

    seconds: float
    nvml: float
    calls: int


def run(report: Report) -> None:
    """Measure both from a machine without instances and from one that is cut all-balanced."""
    report.section(
        "Cutting 8 A100 40 GB into 56 slices of 1g.5gb",
        f"simulated {MACHINE}, operations as long as on hardware; medians of {OUR_RUNS} and {BASELINE_RUNS} runs.",
        "In NVML: inside the calls that change something, where GPUs are worked on at once those of the busiest GPU.",
        "Ours: everything beside them: looking, planning, journaling, verifying. A step makes or destroys one instance.",
    )
    ratios = []
    with _machine() as (machine, host, driver):
        layouts = generate_layouts(host.view().node)
        for title, name in STARTS.items():
            start, target = layouts.select(name), layouts.select(TARGET_LAYOUT)
            steps = _most_steps(_prepared(machine, host, start), target)
            ours = [_measured(machine, host, start, partial(_apply, host, target)) for _ in range(OUR_RUNS)]
            theirs = [
                _measured(machine, host, start, partial(_clear_then_create, driver)) for _ in range(BASELINE_RUNS)
            ]
            ratio = median(r.seconds for r in theirs) / median(r.seconds for r in ours)
            ratios.append(ratio)
            overhead = 1000 * median(r.seconds - r.nvml for r in ours)
            rows = [
                ["tranche", *_figures(ours), f"{overhead:.0f} ms", f"{overhead / steps:.1f} ms", f"{ratio:.2f} times"],
                ["one after the other", *_figures(theirs), "", "", ""],
            ]
            report.table([title, "seconds", "in NVML", "calls", "ours", "ours, a step", "better by"], rows)
    report.verdict(
        f"a full cut at least {TARGET:g} times as fast as one after the other (worst of {len(ratios)}: {min(ratios):.2f})",
        min(ratios) >= TARGET,
    )


def _figures(runs: list[Run]) -> list[str]:
    return [f"{median(r.seconds for r in runs):.3f}", f"{median(r.nvml for r in runs):.3f}", f"{runs[0].calls}"]


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


def _prepared(machine: SimulatedMachine, host: Host, start: Layout) -> NodeView:
    """Cut the machine as the layout says, in no time; the machine as it is then."""
    machine.set_time_scale(0.0)
    _apply(host, start)
    return host.view()


def _most_steps(view: NodeView, target: Layout) -> int:
    """How many steps the GPU with the most of them needs."""
    plan = plan_layout(view, target).plan
    return max(len(plan.steps_on(gpu_uuid)) for gpu_uuid in plan.gpu_uuids)


def _apply(host: Host, layout: Layout) -> None:
    def decide(view: NodeView) -> Plan:
        decision = plan_layout(view, layout)
        decision.refuse_if_blocked()
        return decision.plan

    host.change(decide)


def _measured(machine: SimulatedMachine, host: Host, start: Layout, cut: Callable[[], None]) -> Run:
    """Cut from the start layout with operations as long as on hardware, and check that the slices are there."""
    _prepared(machine, host, start)
    machine.set_time_scale(1.0)
    with _timed_calls() as spent:
        begun = perf_counter()
        cut()
        seconds = perf_counter() - begun
    _check(host.view().node)
    by_thread = [sum(times) for times in spent.values()]
    return Run(seconds, max(by_thread), sum(map(len, spent.values())))


def _check(node: NodeState) -> None:
    for gpu in node:
        slices = [str(name) for instance in gpu.instances for name in instance.slices]
        if slices != [str(_SLICE)] * _SLICES_PER_GPU:
            raise AssertionError(f"{gpu.label} was not cut as asked: {slices}")


@contextmanager
def _timed_calls() -> Iterator[dict[int, list[float]]]:
    """The seconds of each changing NVML call while the block runs, by thread; Tranche has one thread for each GPU."""
    spent: dict[int, list[float]] = {}
    originals: dict[str, Any] = {name: getattr(pynvml, name) for name in _CHANGING}

    def timed(original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            begun = perf_counter()
            try:
                return original(*arguments)
            finally:
                spent.setdefault(threading.get_ident(), []).append(perf_counter() - begun)

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
