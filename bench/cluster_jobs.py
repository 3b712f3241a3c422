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
    rounds = math.ceil(MEMBERS / GPUS)
    theory = rounds * WHOLE_GPU_SECONDS / SLICE_SECONDS
    report.section(
        "56 jobs on a Kubernetes node with eight A100 40 GB",
        f"deploy/examples/56-jobs; a job sleeps {WHOLE_GPU_SECONDS} s on a whole GPU, {SLICE_SECONDS:g} s in a slice of 1g.5gb.",
        "From a Job's creation until its last member has succeeded, the start of pods included, the cut not.",
    )
    with own_cluster(P4D) as cluster:
        (node,) = cluster.nodes
        whole, sliced, eight, all_at_once = _batches(cluster, node)
    rows = [
        _row("on whole GPUs, 8 at a time", whole, rounds * WHOLE_GPU_SECONDS, eight),
        _row("in slices, 56 at a time", sliced, SLICE_SECONDS, all_at_once),
    ]
    report.table(["", "seconds", "the jobs alone", "without any GPU", "Tranche's share"], rows)
    ratio, control = whole.seconds / sliced.seconds, eight.seconds / all_at_once.seconds
    report.table(
        ["", "whole GPUs : slices"],
        [
            ["measured", f"{ratio:.2f}"],
            ["the jobs' lengths alone", f"{theory:.2f}"],
            ["without any GPU: what Kubernetes leaves of it", f"{control:.2f}"],
        ],
    )
    report.verdict(f"slices are at least {WANTED} times as fast", ratio >= WANTED)


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


def _row(name: str, batch: Batch, alone: float, control: Batch) -> list[str]:
    figures = (batch.seconds, alone, control.seconds, batch.seconds - control.seconds)
    return [name, *(f"{each:.1f}" for each in figures)]
