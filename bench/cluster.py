"""Tranche on a real Kubernetes node: from a label to slices, the agent's start and memory, Allocate, what a slice costs a pod.

A cluster of its own with one node, a simulated p4d.24xlarge, is made and removed: root on Linux only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.cluster import Cluster, remove_cluster, remove_leftovers, this_process
from cluster.errors import ClusterError

from bench import cluster_agent, cluster_layouts, cluster_pods
from bench.report import Report

MACHINE = "p4d.24xlarge"


def run(report: Report) -> None:
    """Measure everything on one cluster; where none can run, say so and exit with 1."""
    try:
        with bench_cluster() as cluster:
            (node,) = cluster.nodes
            cluster_layouts.run(report, cluster, node)
            cluster_agent.run(report, cluster, node)
            cluster_pods.run(report, cluster, node)
    except ClusterError as error:
        sys.exit(f"error: {error}\n{error.hint}".rstrip())


@contextmanager
def bench_cluster() -> Iterator[Cluster]:
    """A cluster with one node, the p4d.24xlarge, whose GPUs take as long as on hardware; gone when the block ends."""
    remove_leftovers()
    name = f"bench-{this_process()[0]}"
    try:
        yield Cluster.create(
            name, {"p4d": MACHINE}, owner=this_process(), say=lambda line: print(line, file=sys.stderr)
        )
    finally:
        remove_cluster(name)
