"""56 jobs on a Kubernetes node with eight A100: on whole GPUs, in slices, and both once more without any GPU.

The jobs are the article's in number, length and GPUs; they sleep. A cluster of its own is made and removed: root on Linux only.
"""

from __future__ import annotations

import math

from cluster.agents import agent_on
from cluster.batch_jobs import Batch, example, run_batch
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import label, wait_for_slices

from bench.own_cluster import P4D, own_cluster
from bench.report import Report
from tranche.demo.schedule import SLICE_SECONDS, WHOLE_GPU_SECONDS

MEMBERS, GPUS = 56, 8
WANTED = 2.5
_NAMESPACE = "jobs"
_TIMEOUT = 900.0


def run(report: Report) -> None:
    with own_cluster(P4D) as cluster:
        (node,) = cluster.nodes
        whole, sliced, eight, all_at_once = _batches(cluster, node)
    report.section(
        "56 jobs on a Kubernetes node",
        f"The {MEMBERS} [jobs from AWS's article](../guides/static-mig-walkthrough.md#awss-56-jobs) run on a real kubelet with"
        " simulated GPUs.",
        f"Each job only sleeps: {WHOLE_GPU_SECONDS} s on a whole GPU, or {SLICE_SECONDS:g} s on a 1g.5gb slice.",
        "Each cell gives the time in seconds until the last pod succeeds, excluding the time to create slices.",
    )
    alone = math.ceil(MEMBERS / GPUS) * WHOLE_GPU_SECONDS
    first, second = (whole.seconds, alone, eight.seconds), (sliced.seconds, SLICE_SECONDS, all_at_once.seconds)
    ratios = [one / other for one, other in zip(first, second, strict=True)]
    report.table(
        ["", "measured", "the jobs alone", "the same pods without GPUs"],
        [
            ["on whole GPUs, 8 at a time", *(f"{each:.1f}" for each in first)],
            ["in slices, 56 at a time", *(f"{each:.1f}" for each in second)],
            ["ratio", *(f"{each:.2f}" for each in ratios)],
        ],
    )
    report.verdict(f"Slices are at least {WANTED} times as fast.", ratios[0] >= WANTED)


def _batches(cluster: Cluster, node: Node) -> tuple[Batch, Batch, Batch, Batch]:
    cluster.make_namespace(_NAMESPACE)
    control = example("no-gpu", parallelism=GPUS, seconds=WHOLE_GPU_SECONDS)
    with agent_on(cluster, node, "--mig-strategy=mixed"):
        wait_for_slices(cluster, node, gpu=GPUS)
        whole = run_batch(cluster, _NAMESPACE, example("whole-gpus"), timeout=_TIMEOUT)
        eight = run_batch(cluster, _NAMESPACE, control, timeout=_TIMEOUT)
        label(cluster, node, "all-1g.5gb")
        wait_for_slices(cluster, node, mig_1g_5gb=MEMBERS)
        sliced = run_batch(cluster, _NAMESPACE, example("slices"), timeout=_TIMEOUT)
        all_at_once = run_batch(cluster, _NAMESPACE, example("no-gpu"), timeout=_TIMEOUT)
    return whole, sliced, eight, all_at_once
