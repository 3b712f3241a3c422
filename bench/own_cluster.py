"""The cluster that a benchmark makes for itself and removes; root on Linux only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cluster.cluster import Cluster, remove_cluster, remove_leftovers, this_process
from release.progress import say_beside

P4D: Mapping[str, str] = {"p4d": "p4d.24xlarge"}
"""One node with eight A100 40 GB."""


@contextmanager
def own_cluster(nodes: Mapping[str, str], *, time_scale: float = 1.0) -> Iterator[Cluster]:
    """A cluster of these nodes, by name their machine types; gone when the block ends. ClusterError where none can run."""
    remove_leftovers()
    name = f"bench-{this_process()[0]}"
    try:
        yield Cluster.create(name, nodes, time_scale=time_scale, owner=this_process(), say=say_beside)
    finally:
        remove_cluster(name)
