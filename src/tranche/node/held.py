"""What one process holds on to: a place in the queue, or a share for its command."""

from __future__ import annotations

from dataclasses import dataclass

from tranche.core.allocation import Allocation
from tranche.node.limits.memory_groups import MemoryGroup
from tranche.node.locks.locks import FileLock


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A place in the queue, kept for as long as its lock is held."""

    id: str
    lock: FileLock


@dataclass(frozen=True, slots=True)
class HeldAllocation:
    """A granted allocation; it lasts for as long as a process holds its lock or its workload lives.

    `key` is known to its own processes alone, and shows that they came of it. `group` is the control group with its limits.
    """

    allocation: Allocation
    lock: FileLock
    key: str = ""
    group: MemoryGroup | None = None
