"""Processes of a node that a benchmark times: they run where the agent runs, and so get the same share of the processor."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from cluster.node import Node
from cluster.waiting import wait_for


def seconds_of_process(node: Node, command: Sequence[str]) -> float:
    """Seconds from the start of a process on the node until it has ended. How it ended is not known."""
    begun = perf_counter()
    unit = node.start_program("timed", command)
    wait_for(f"{command[0]} ends", lambda: unit.pid is None, period=0.01)
    return perf_counter() - begun
