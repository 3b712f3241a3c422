"""How long after NVML is done a labelled layout is allocatable, beside the same cut without Kubernetes."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

from cluster.agents import agent_on
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import label, slices, wait_for_state
from cluster.waiting import wait_for

from bench.cluster_processes import seconds_of_process
from bench.report import Report
from tranche.planning.plan import CreateInstance, DestroyInstance, Plan, ResetGpu, SetMigMode, Step, plan_from_dict

OFFERED: Mapping[str, Mapping[str, int]] = {
    "all-disabled": {"gpu": 8},
    "all-balanced": {"mig-1g.5gb": 16, "mig-2g.10gb": 8, "mig-3g.20gb": 8},
    "all-1g.5gb": {"mig-1g.5gb": 56},
}
# Each change begins where the one before ended; the first where a new machine is.
CHANGES = (
    ("all-disabled", "all-1g.5gb"),
    ("all-1g.5gb", "all-balanced"),
    ("all-balanced", "all-1g.5gb"),
    ("all-1g.5gb", "all-disabled"),
)
LABEL_RUNS = 7
APPLY_RUNS = 3
GOAL_SECONDS = 2.0
_SEED = 1
_STATUS_PERIOD_SECONDS = 1.0
# Seconds on Ampere of a GPU instance with its one compute instance, by compute slices; as docs/reference/simulator.md has them.
_CREATE = {1: 0.16, 2: 0.17, 3: 0.20, 4: 0.21, 7: 0.24}
_DESTROY = {1: 0.20, 2: 0.20, 3: 0.21, 4: 0.21, 7: 0.22}
_MODE_CHANGE_SECONDS, _RESET_SECONDS = 0.5, 3.0
_TRANCHE = str(Path(sys.executable).with_name("tranche"))


def run(report: Report, cluster: Cluster, node: Node) -> None:
    """Measure on a node whose GPUs are not cut; they are not cut afterwards."""
    report.section(
        "From a node's label to allocatable slices",
        f"simulated {node.record.machine}, operations as long as on hardware; medians of {LABEL_RUNS} runs, in seconds.",
        "NVML: the plan's steps on the GPU with the most of them. Beyond: everything else from the label on; up to 1 s of it",
        "is the kubelet's, which writes its node's status once a second here: labels come at random instants of that second.",
        f"Baseline: `tranche layout apply` as a process on the node, without Kubernetes, medians of {APPLY_RUNS} runs.",
    )
    nvml, applied = _without_kubernetes(node)
    allocatable = _labelled(cluster, node)
    rows = []
    for change in CHANGES:
        ours, baseline = median(allocatable[change]), median(applied[change])
        figures = [ours, nvml[change], ours - nvml[change], baseline - nvml[change]]
        rows.append([" to ".join(change), *(f"{each:.2f}" for each in figures)])
    report.table(["", "label to allocatable", "NVML", "beyond", "baseline, beyond"], rows)
    worst = max(median(allocatable[change]) - nvml[change] for change in CHANGES)
    report.verdict(
        f"allocatable at most {GOAL_SECONDS:g} s after NVML (worst median of {len(CHANGES)}: {worst:.2f} s)",
        worst <= GOAL_SECONDS,
    )


Change = tuple[str, str]


def _without_kubernetes(node: Node) -> tuple[dict[Change, float], dict[Change, list[float]]]:
    """NVML's own seconds for each change, and those of each run of the command line."""
    nvml: dict[Change, float] = {}
    applied: dict[Change, list[float]] = {change: [] for change in CHANGES}
    for _ in range(APPLY_RUNS):
        for change in CHANGES:
            target = change[1]
            if change not in nvml:
                plan = node.run(_TRANCHE, "layout", "plan", "-c", target, "-o", "json")
                nvml[change] = _nvml_seconds(plan_from_dict(json.loads(plan)))
            applied[change].append(seconds_of_process(node, [_TRANCHE, "layout", "apply", "-c", target]))
            node.run(_TRANCHE, "layout", "assert", "-c", target)
    return nvml, applied


def _labelled(cluster: Cluster, node: Node) -> dict[Change, list[float]]:
    """Seconds of each run from the label until the slices are allocatable."""
    allocatable: dict[Change, list[float]] = {change: [] for change in CHANGES}
    rng = random.Random(_SEED)
    with agent_on(cluster, node, "--mig-strategy=mixed"):
        _wish(cluster, node, CHANGES[0][0])
        for _ in range(LABEL_RUNS):
            for change in CHANGES:
                # The wish before was seen to be fulfilled just after the kubelet wrote its status: come at any time instead.
                time.sleep(rng.uniform(0, _STATUS_PERIOD_SECONDS))
                allocatable[change].append(_wish(cluster, node, change[1]))
    label(cluster, node, None)
    return allocatable


def _wish(cluster: Cluster, node: Node, layout: str) -> float:
    begun = perf_counter()
    cluster.api.merge(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {"nvidia.com/mig.config": layout}}})
    wait_for(f"{layout} is allocatable", lambda: slices(cluster, node) == OFFERED[layout], period=0.02)
    seconds = perf_counter() - begun
    wait_for_state(cluster, node, "success")
    return seconds


def _nvml_seconds(plan: Plan) -> float:
    """What the simulator takes for the plan: GPUs are worked on at once, the steps of each one after the other."""
    return max(sum(map(_step_seconds, plan.steps_on(gpu_uuid))) for gpu_uuid in plan.gpu_uuids)


def _step_seconds(step: Step) -> float:
    match step:
        case SetMigMode():
            return _MODE_CHANGE_SECONDS
        case ResetGpu():
            return _RESET_SECONDS
        case CreateInstance():
            return _CREATE[step.profile.slices]
        case DestroyInstance():
            return _DESTROY[step.profile.slices]
