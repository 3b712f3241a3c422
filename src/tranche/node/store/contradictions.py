"""Rows of the register that contradict each other: somebody edited the ledger, or a part of it is lost.

Allocations and their grants say who holds what; all other rows follow from them. Where they do not, the register is written anew.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping

from tranche.core.allocation import Allocation, ComputeSlice, FractionalShare, Grant, Slice, WholeGpu
from tranche.core.wire import grant_from_dict
from tranche.node.locks.locks import is_held
from tranche.node.state.session import StateFolder
from tranche.node.store import register
from tranche.node.store.register import device_name, units_of

_ROWS = """
SELECT 'units', gpu_uuid || ' ' || unit, coalesce(allocation_id, device_id) FROM units
UNION ALL SELECT 'devices', id, '' FROM devices
UNION ALL SELECT 'parts', device_id, allocation_id FROM parts
UNION ALL SELECT 'compute_units', device_id || ' ' || unit, allocation_id FROM compute_units
UNION ALL SELECT DISTINCT 'grants', allocation_id, '' FROM grants
"""

_UNBALANCED = """
SELECT id FROM devices WHERE
    memory_taken <> (SELECT coalesce(sum(memory), 0) FROM parts WHERE device_id = devices.id) OR
    holders <> (SELECT count(*) FROM parts WHERE device_id = devices.id)
        + (SELECT count(*) FROM compute_units WHERE device_id = devices.id)
"""

_LOST_PLANS = "SELECT gpu_uuid FROM changing_gpus WHERE plan_id NOT IN (SELECT id FROM plans)"


def contradictory_tables(db: sqlite3.Connection, places: StateFolder) -> tuple[str, ...]:
    """The tables with rows too many or too few, by what the allocations were granted; none where the register is sound."""
    wanted = {row for allocation in register.allocations(db) for row in _rows_of(allocation)}
    found = {tuple(row) for row in db.execute(_ROWS)}
    tables = {row[0] for row in wanted ^ found}
    if db.execute(_UNBALANCED).fetchone() is not None:
        tables.add("devices")
    # A plan that still works on the GPU holds its lock.
    if any(not is_held(places.gpu_locks / f"{gpu_uuid}.lock") for (gpu_uuid,) in db.execute(_LOST_PLANS)):
        tables.add("changing_gpus")
    return tuple(sorted(tables))


def _rows_of(allocation: Allocation) -> Iterable[tuple[str, str, str]]:
    # An allocation that was granted nothing has lost its grants.
    yield "grants", allocation.id, ""
    for grant in allocation.grants:
        device, owner = _device(grant), allocation.id
        if isinstance(grant, FractionalShare | ComputeSlice):
            owner = device_name(device)
            yield "devices", owner, ""
        for unit in units_of(device):
            yield "units", f"{grant.gpu_uuid} {unit}", owner
        if isinstance(grant, FractionalShare):
            yield "parts", owner, allocation.id
        elif isinstance(grant, ComputeSlice):
            for unit in range(grant.start, grant.start + grant.size):
                yield "compute_units", f"{owner} {unit}", allocation.id


def _device(grant: Grant) -> WholeGpu | Slice:
    if isinstance(grant, FractionalShare):
        return grant.device
    return grant.inside if isinstance(grant, ComputeSlice) else grant


def grants_without_allocation(db: sqlite3.Connection) -> Mapping[str, tuple[Grant, ...]]:
    """What was granted to allocations that are no longer there, by their id."""
    found: dict[str, tuple[Grant, ...]] = {}
    lost = "SELECT allocation_id, grant FROM grants WHERE allocation_id NOT IN (SELECT id FROM allocations)"
    for allocation_id, text in db.execute(f"{lost} ORDER BY allocation_id, ordinal"):
        found[allocation_id] = (*found.get(allocation_id, ()), grant_from_dict(json.loads(text)))
    return found


def clear(db: sqlite3.Connection, places: StateFolder) -> None:
    """Forget who holds what, within a transaction that then writes it anew, and the changes of lost plans."""
    # Devices go first: then no trigger changes an account that does not balance.
    db.execute("PRAGMA defer_foreign_keys = ON")
    for table in ("devices", "parts", "compute_units", "units", "grants", "allocations"):
        db.execute(f"DELETE FROM {table}")
    over = [row for row in db.execute(_LOST_PLANS).fetchall() if not is_held(places.gpu_locks / f"{row[0]}.lock")]
    db.executemany("DELETE FROM changing_gpus WHERE gpu_uuid = ?", over)


def memory_of_devices(
    db: sqlite3.Connection, allocations: Iterable[Allocation], seen: Mapping[WholeGpu | Slice, int]
) -> dict[WholeGpu | Slice, int]:
    """The bytes of each device that the allocations have parts of: what is seen or written down, at least what they have of it.

    A lost GPU shows no memory, and keeps those who have a part of it all the same.
    """
    written = dict(db.execute("SELECT id, memory FROM devices"))
    taken: dict[WholeGpu | Slice, int] = {}
    for grant in (grant for each in allocations for grant in each.grants if isinstance(grant, FractionalShare)):
        taken[grant.device] = taken.get(grant.device, 0) + grant.memory
    return {
        device: max(written.get(device_name(device), seen.get(device, 0)), memory) for device, memory in taken.items()
    }
