"""Tranche on a real Kubernetes node: from a label to slices, the agent's start and memory, Allocate, what a slice costs a pod.

A cluster of its own with one node, a simulated p4d.24xlarge, is made and removed: root on Linux only.
"""

from __future__ import annotations

from bench import cluster_agent, cluster_layouts, cluster_pods
from bench.own_cluster import P4D, own_cluster
from bench.report import Report


def run(report: Report) -> None:
    """Measure everything on one cluster."""
    with own_cluster(P4D) as cluster:
        (node,) = cluster.nodes
        cluster_layouts.run(report, cluster, node)
        cluster_agent.run(report, cluster, node)
        cluster_pods.run(report, cluster, node)
