"""The cluster that a benchmark makes for itself and removes; root on Linux only."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cluster.cluster import Cluster, remove_cluster, remove_leftovers, this_process

P4D: Mapping[str, str] = {"p4d": "p4d.24xlarge"}
"""One node with eight A100 40 GB."""


@contextmanager
def own_cluster(nodes: Mapping[str, str], *, time_scale: float = 1.0) -> Iterator[Cluster]:
    """A cluster of these nodes, by name their machine types; gone when the block ends. ClusterError where none can run."""
    remove_leftovers()
    name = f"bench-{this_process()[0]}"
    try:
        yield Cluster.create(name, nodes, time_scale=time_scale, owner=this_process(), say=say)
    finally:
        remove_cluster(name)


def say(line: str) -> None:
    """Tell how far it is, beside the report."""
    print(line, file=sys.stderr, flush=True)
