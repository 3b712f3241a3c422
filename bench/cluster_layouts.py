"""How long after NVML is done a labelled layout is allocatable, beside the same cut without Kubernetes."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from cluster.agents import agent_on
from cluster.cluster import Cluster
from cluster.cuts import CutTimes, time_command, time_label
from cluster.node import Node
from cluster.node_layouts import label, remove_layouts, write_layouts
from cluster.waiting import wait_for
from cluster.workloads import deployment, phases, pods_in

from bench.report import Report

OFFERED: Mapping[str, Mapping[str, int]] = {
    "all-disabled": {"gpu": 8},
    "all-balanced": {"mig-1g.5gb": 16, "mig-2g.10gb": 8, "mig-3g.20gb": 8},
    "all-1g.5gb": {"mig-1g.5gb": 56},
    "pairs": {"mig-2g.10gb": 16, "mig-3g.20gb": 8},
}
# A round begins and ends with the same layout; the first one on a new machine.
WHOLE_MACHINE = ("all-disabled", "all-1g.5gb", "all-balanced", "all-1g.5gb", "all-disabled")
AROUND_PODS = ("all-balanced", "pairs", "all-balanced")
LABEL_RUNS = 7
COMMAND_RUNS = 3
GOAL_SECONDS = 2.0
_PAIRS = """
version: v1
mig-configs:
  pairs: [{devices: all, mig-enabled: true, mig-devices: {2g.10gb: 2, 3g.20gb: 1}}]
"""
_SEED = 1
_STATUS_PERIOD_SECONDS = 1.0
_NAMESPACE = "layouts"
_TRANCHE = str(Path(sys.executable).with_name("tranche"))

Change = tuple[str, str]
Measured = dict[Change, list[CutTimes]]


def run(report: Report, cluster: Cluster, node: Node) -> None:
    """Measure on a node whose GPUs are not cut; they are not cut afterwards."""
    report.section(
        "From a node's label to allocatable slices",
        f"simulated {node.record.machine}, operations as long as on hardware; medians of {LABEL_RUNS} runs, in seconds.",
        "All observed. NVML at work: from the first call that asks for a change until the last change has taken effect.",
        "Up to 1 s of what follows is the kubelet's, which writes its node's status once a second here: labels come at random",
        "instants of that second.",
        f"Baseline: `tranche layout apply` on the node, without Kubernetes, medians of {COMMAND_RUNS} runs. It ends when it has",
        "seen that every change is there.",
    )
    commanded = _commanded(node)
    with agent_on(cluster, node, "--mig-strategy=mixed"):
        write_layouts(cluster, _PAIRS)
        labelled = _labelled(cluster, node, WHOLE_MACHINE)
        around_pods = _labelled_around_pods(cluster, node)
        time_label(cluster, node, "all-disabled", OFFERED["all-disabled"])
        remove_layouts(cluster)
    label(cluster, node, None)
    report.table(
        [
            "",
            "label to first call",
            "NVML at work",
            "to allocatable",
            "baseline: to first call",
            "at work",
            "to its end",
        ],
        [[" to ".join(change), *_medians(labelled[change]), *_medians(commanded[change])] for change in labelled],
    )
    report.table(
        ["with 8 pods in 3g.20gb, which run on", "label to first call", "NVML at work", "to allocatable"],
        [[" to ".join(change), *_medians(around_pods[change])] for change in around_pods],
    )
    worst = max(median(each.after for each in times) for times in (*labelled.values(), *around_pods.values()))
    report.verdict(
        f"allocatable at most {GOAL_SECONDS:g} s after NVML is done (worst median of {len(labelled) + len(around_pods)}: "
        f"{worst:.2f} s)",
        worst <= GOAL_SECONDS,
    )


def _medians(times: Sequence[CutTimes]) -> list[str]:
    spans = ([each.before for each in times], [each.driver for each in times], [each.after for each in times])
    return [f"{median(span):.2f}" for span in spans]


def _commanded(node: Node) -> Measured:
    """Each change by the command line."""
    measured: Measured = {}
    for _ in range(COMMAND_RUNS):
        for change in pairwise(WHOLE_MACHINE):
            target = change[1]
            times = time_command(node, [_TRANCHE, "layout", "apply", "-c", target])
            measured.setdefault(change, []).append(times)
            node.run(_TRANCHE, "layout", "assert", "-c", target)
    return measured


def _labelled(cluster: Cluster, node: Node, layouts: Sequence[str]) -> Measured:
    """Each change by label; the node must have the first layout, or be on the way to it."""
    measured: Measured = {}
    rng = random.Random(_SEED)
    for _ in range(LABEL_RUNS):
        for change in pairwise(layouts):
            # The wish before was seen to be fulfilled just after the kubelet wrote its status: come at any time instead.
            time.sleep(rng.uniform(0, _STATUS_PERIOD_SECONDS))
            times = time_label(cluster, node, change[1], OFFERED[change[1]])
            measured.setdefault(change, []).append(times)
    return measured


def _labelled_around_pods(cluster: Cluster, node: Node) -> Measured:
    """Each change of the 1g part while 8 pods run in the 3g part: the same containers in the same slices from first to last."""
    time_label(cluster, node, AROUND_PODS[0], OFFERED[AROUND_PODS[0]])
    cluster.make_namespace(_NAMESPACE)
    cluster.apply(deployment("large", _NAMESPACE, 8, limits={"nvidia.com/mig-3g.20gb": 1}))
    wait_for("8 pods run", lambda: phases(cluster, _NAMESPACE) == {"Running": 8})
    before = _running(cluster), _large_slices(node)
    measured = _labelled(cluster, node, AROUND_PODS)
    assert before == (_running(cluster), _large_slices(node)), "a pod or its slice did not stay"
    cluster.kubectl("delete", "namespace", _NAMESPACE)
    return measured


def _running(cluster: Cluster) -> set[str]:
    """The containers that run now; one that is started again has another id."""
    statuses = [pod["status"]["containerStatuses"][0] for pod in pods_in(cluster, _NAMESPACE)]
    return {status["containerID"] for status in statuses if "running" in status["state"]}


def _large_slices(node: Node) -> set[str]:
    """The UUIDs of the slices that the pods use."""
    return {line.split()[-1] for line in node.run("nvidia-smi", "-L").splitlines() if "MIG 3g.20gb" in line}
