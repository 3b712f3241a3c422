"""How long a cut of a node's GPUs takes, seen from outside: until it begins, while the driver is at work, and after that."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import label, slices, wait_for_state
from cluster.waiting import wait_for


@dataclass(frozen=True, slots=True)
class CutTimes:
    """Spans of one cut, in seconds, one after the other.

    `before`: from the wish to the first call that asks the driver for a change. `driver`: from there until the last change has
    taken effect. `after`: from there until the effect is seen; below 0 when it was seen before the last change.
    """

    before: float
    driver: float
    after: float


def time_label(cluster: Cluster, node: Node, layout: str, offered: Mapping[str, int]) -> CutTimes:
    """Label a node, until it offers those slices (by resource, as `slices` gives them) and shows success.

    Raises:
        ClusterError: nothing was cut, or not these slices.
    """
    return _time_cut(
        node,
        lambda: label(cluster, node, layout),
        lambda: slices(cluster, node) == offered,
        lambda: wait_for_state(cluster, node, "success"),
    )


def time_command(node: Node, command: Sequence[str]) -> CutTimes:
    """Run a command on the node that cuts its GPUs, until it ends. How it ended is not known.

    Raises:
        ClusterError: it cut nothing.
    """
    unit = node.unit("timed")
    return _time_cut(node, lambda: node.start_program(unit.name, command), lambda: unit.pid is None, lambda: None)


def _time_cut(
    node: Node, wish: Callable[[], object], is_seen: Callable[[], bool], settle: Callable[[], None]
) -> CutTimes:
    machine = node.machine
    calls = machine.total_change_calls()
    wished_at = time.monotonic()
    wish()
    wait_for(f"{node.name} is cut", lambda: machine.total_change_calls() > calls, period=0.002)
    begun_at = time.monotonic()
    wait_for(f"the cut of {node.name} is seen", is_seen, period=0.01)
    seen_at = time.monotonic()
    settle()
    return CutTimes(begun_at - wished_at, machine.changed_at - begun_at, seen_at - machine.changed_at)
