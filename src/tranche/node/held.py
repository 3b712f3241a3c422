"""What one process holds: a place in the queue, a promised share, or a share for its command."""

from __future__ import annotations

from typing import NamedTuple

from tranche.core.allocation import Allocation
from tranche.node.limits.share_groups import ShareGroup
from tranche.node.locks.locks import FileLock
from tranche.node.store.records import Waiter
from tranche.planning.steps.plan import Plan


class QueuePlace(NamedTuple):
    """A place in the queue, kept while its lock is held."""

    id: str
    lock: FileLock


class HeldAllocation(NamedTuple):
    """A granted allocation; it lasts while a process holds its lock or its workload lives.

    Only its own processes know `key`, which proves that they belong to it. `group` is the control group with its limits.
    """

    allocation: Allocation
    lock: FileLock
    key: str = ""
    group: ShareGroup | None = None


class ReservedShare(NamedTuple):
    """A share promised to a waiter, who receives it when the plan is carried out. An empty plan has the id "".

    `note` comes from the decision. If the plan fails, the waiter gets its place back.
    """

    held: HeldAllocation
    plan_id: str
    plan: Plan
    note: str
    place: QueuePlace
    waiter: Waiter
    driver_version: str
