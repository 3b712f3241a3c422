"""What one process holds on to: a place in the queue, a share that it was promised, or one for its command."""

from __future__ import annotations

from dataclasses import dataclass

from tranche.core.allocation import Allocation
from tranche.node.limits.limited_shares import MemoryGroup
from tranche.node.locks.locks import FileLock
from tranche.node.store.records import Waiter
from tranche.planning.steps.plan import Plan


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


@dataclass(frozen=True, slots=True)
class ReservedShare:
    """A share that a waiter was promised. It is the waiter's when its plan, which has the id "" when it is empty, is carried out.

    `note` is the decision's own. The waiter gets its place back where the plan fails.
    """

    held: HeldAllocation
    plan_id: str
    plan: Plan
    note: str
    place: QueuePlace
    waiter: Waiter
    driver_version: str
