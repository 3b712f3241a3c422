"""Whether an MPS daemon has died, or should end: known by a few files, so that whoever only looks can ask."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from tranche.core.allocation import Allocation, FractionalShare
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState, InstanceKey
from tranche.node.mps.daemon_tries import DaemonFailureLog
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore
from tranche.node.store import records, register

DeviceKey = tuple[str, InstanceKey | None]
"""A device by its GPU's UUID and the slot of its instance."""

IDLE_SECONDS = 60.0
"""For so long a daemon stays when the last share of its device has ended: the next share starts faster."""


def care_needed(db: sqlite3.Connection, known: DaemonRecordStore, now: float) -> bool:
    """Whether something is to be done about a daemon; `now` in seconds since the epoch. Not while a plan is carried out."""
    found, damaged = known.look()
    if not (found or damaged) or records.open_plans(db):
        return False
    if damaged or any(each.untold for each in found):
        return True
    shared = shared_by_mps(register.allocations(db))
    return any(
        shared[each.key] and (each.changed or each.state is DaemonState.LOST)
        if each.key in shared
        else is_due(each, known, now)
        for each in found
    )


def is_due(record: DaemonRecord, known: DaemonRecordStore, now: float) -> bool:
    """Whether a daemon whose device nobody shares should end now: something is wrong with it, or it was idle for long.

    Not shortly after that failed.
    """
    if DaemonFailureLog(known.folder).failed_lately(record, now):
        return False
    if record.state is not DaemonState.READY or record.suspect or not known.reachable(record):
        return True
    return now - known.idle_since(record) >= IDLE_SECONDS


def shared_by_mps(allocations: Iterable[Allocation]) -> Mapping[DeviceKey, bool]:
    """The devices of which somebody holds a part by MPS, each with whether a part of it counts as limited."""
    found: dict[DeviceKey, bool] = {}
    for allocation in allocations:
        for grant in allocation.grants:
            if isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS:
                key = grant.gpu_uuid, grant.slot
                found[key] = found.get(key, False) or not grant.unlimited
    return found
