"""What dead processes left in the ledger, found by probing a few file locks; no GPU is asked, and nothing is changed.

`tranche.node.recovery.recovery` clears it.
"""

from __future__ import annotations

import os
import sqlite3

from tranche.core.allocation import Allocation
from tranche.core.keeper import ClaimKeeper, PlacedPodKeeper, PodKeeper, ProcessKeeper
from tranche.node.locks.locks import is_held
from tranche.node.state.session import StateFolder, pid_namespace, process_lives, sees_processes_of
from tranche.node.store import records, register


def anything_left(db: sqlite3.Connection, places: StateFolder) -> bool:
    """Whether anything in the ledger belongs to a dead process."""
    return bool(interrupted_plans(db, places) or dead_allocations(db, places) or dead_waiters(db, places))


def interrupted_plans(db: sqlite3.Connection, places: StateFolder) -> tuple[str, ...]:
    """The open plans whose process is dead, oldest first."""
    return tuple(each.id for each in records.open_plans(db) if not is_held(places.session(each.session)))


def dead_allocations(db: sqlite3.Connection, places: StateFolder) -> tuple[str, ...]:
    """Allocations whose command has ended; something that it started may keep them all the same.

    Those of open plans are cleared with their plan.
    """
    planned = {each.allocation_id for each in records.open_plans(db)}
    return tuple(
        each.id for each in register.allocations(db) if each.id not in planned and _command_ended(each, places)
    )


def dead_waiters(db: sqlite3.Connection, places: StateFolder) -> tuple[str, ...]:
    """The waiters whose process is dead."""
    return tuple(each.id for each in records.waiters(db) if not is_held(places.waiter(each.id)))


def _command_ended(allocation: Allocation, places: StateFolder) -> bool:
    """Whether the command of an allocation has ended. Pods and claims are judged by those who can ask about them.

    Whoever cannot see the processes of the command's PID namespace, from within a container say, cannot tell.
    """
    match allocation.keeper:
        case ProcessKeeper() as keeper:
            if is_held(places.allocation(allocation.id)) or not sees_processes_of(keeper.namespace):
                return False
            return not runs(keeper) or (keeper.suspected and os.geteuid() == 0)  # root can tell
        case PodKeeper() | ClaimKeeper() | PlacedPodKeeper():
            return False


def runs(keeper: ProcessKeeper) -> bool:
    """Whether the process that keeps a share still runs, and its pid means the same to this process."""
    return keeper.namespace in (0, pid_namespace()) and process_lives(keeper.pid, keeper.started)
