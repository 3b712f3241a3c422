"""The register of this machine: who holds what of its GPUs. Nothing else is asked who holds a slice.

Every function takes the connection of an open ledger transaction, so that a caller can combine several in one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import assert_never

from tranche.core.allocation import Allocation, ComputeSlice, FractionalShare, Grant, Phase, Slice, WholeGpu
from tranche.core.keeper import Keeper
from tranche.core.request import Request
from tranche.core.sharing import Sharing
from tranche.core.state import InstanceKey
from tranche.core.wire import (
    grant_from_dict,
    grant_to_dict,
    keeper_from_dict,
    keeper_to_dict,
    request_from_dict,
    request_to_dict,
)
from tranche.node.store.schema import WHOLE_GPU_UNITS

_ALL_COMPUTE = 100
_REMEMBERED = 1024


def add_allocation(
    db: sqlite3.Connection, allocation: Allocation, memory: Mapping[WholeGpu | Slice, int] | None = None
) -> None:
    """Record an allocation and take what it is granted; `memory` gives the bytes of each device that parts are granted of.

    Raises sqlite3.IntegrityError when something of it is held already, or an account would be overdrawn: the last line against
    giving a thing twice.
    """
    db.execute(
        "INSERT INTO allocations VALUES (?, ?, ?, ?, ?, ?)",
        (
            allocation.id,
            json.dumps(request_to_dict(allocation.request)),
            allocation.phase,
            allocation.created,
            allocation.command,
            json.dumps(keeper_to_dict(allocation.keeper)),
        ),
    )
    for ordinal, grant in enumerate(allocation.grants):
        db.execute("INSERT INTO grants VALUES (?, ?, ?)", (allocation.id, ordinal, json.dumps(grant_to_dict(grant))))
        _take(db, allocation.id, grant, memory or {})


def _take(db: sqlite3.Connection, allocation_id: str, grant: Grant, memory: Mapping[WholeGpu | Slice, int]) -> None:
    match grant:
        case WholeGpu() | Slice():
            db.executemany(
                "INSERT INTO units VALUES (?, ?, ?, NULL)",
                [(grant.gpu_uuid, unit, allocation_id) for unit in units_of(grant)],
            )
        case ComputeSlice(inside, _, start, size):
            device = _device(db, inside, "divided", 0, _ALL_COMPUTE)
            db.executemany(
                "INSERT INTO compute_units VALUES (?, ?, ?)",
                [(device, unit, allocation_id) for unit in range(start, start + size)],
            )
        case FractionalShare():
            device = _device(db, grant.device, "shared", memory[grant.device], _ALL_COMPUTE, grant.sharing)
            row = (device, allocation_id, grant.memory, grant.compute or 0, grant.sharing)
            db.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", row)
        case _:
            assert_never(grant)


def _device(
    db: sqlite3.Connection, of: WholeGpu | Slice, use: str, memory: int, compute: int, sharing: Sharing | None = None
) -> str:
    """The row of a device with several holders, made with its units when it has none yet."""
    device_id = device_name(of)
    if db.execute("SELECT 1 FROM devices WHERE id = ?", (device_id,)).fetchone() is None:
        db.execute(
            "INSERT INTO devices (id, gpu_uuid, use, memory, compute, sharing) VALUES (?, ?, ?, ?, ?, ?)",
            (device_id, of.gpu_uuid, use, memory, compute, sharing),
        )
        db.executemany(
            "INSERT INTO units VALUES (?, ?, NULL, ?)", [(of.gpu_uuid, unit, device_id) for unit in units_of(of)]
        )
    return device_id


def device_name(of: WholeGpu | Slice) -> str:
    """The name of a device in the register."""
    return of.gpu_uuid if isinstance(of, WholeGpu) else str(of.slot)


def units_of(of: WholeGpu | Slice) -> range:
    """The units of a device's GPU that whoever has the device holds."""
    if isinstance(of, WholeGpu):
        return WHOLE_GPU_UNITS
    return range(of.placement.start, of.placement.start + of.placement.size)


def chore_due(db: sqlite3.Connection, name: str) -> bool:
    """Whether that chore is still to be done."""
    return db.execute("SELECT 1 FROM chores WHERE name = ?", (name,)).fetchone() is not None


def chore_done(db: sqlite3.Connection, name: str) -> None:
    """Note that a chore is done."""
    db.execute("DELETE FROM chores WHERE name = ?", (name,))


def activate_allocation(db: sqlite3.Connection, allocation_id: str) -> None:
    """Mark an allocation as granted."""
    db.execute("UPDATE allocations SET phase = ? WHERE id = ?", (Phase.ACTIVE, allocation_id))


def set_keeper(db: sqlite3.Connection, allocation_id: str, keeper: Keeper) -> None:
    """Record who keeps an allocation."""
    db.execute("UPDATE allocations SET keeper = ? WHERE id = ?", (json.dumps(keeper_to_dict(keeper)), allocation_id))


def set_grants(db: sqlite3.Connection, allocation_id: str, grants: Sequence[Grant]) -> None:
    """Record what has become of an allocation's grants. What each takes of its device stays as it is."""
    db.executemany(
        "UPDATE grants SET grant = ? WHERE allocation_id = ? AND ordinal = ?",
        [(json.dumps(grant_to_dict(grant)), allocation_id, ordinal) for ordinal, grant in enumerate(grants)],
    )


def remove_allocation(db: sqlite3.Connection, allocation_id: str) -> bool:
    """Forget an allocation and free what it had; whether it was there."""
    return db.execute("DELETE FROM allocations WHERE id = ?", (allocation_id,)).rowcount > 0


def allocations(db: sqlite3.Connection) -> tuple[Allocation, ...]:
    """Every allocation, oldest first."""
    grants: dict[str, list[Grant]] = {}
    for allocation_id, grant in db.execute("SELECT allocation_id, grant FROM grants ORDER BY allocation_id, ordinal"):
        grants.setdefault(allocation_id, []).append(_grant(grant))
    rows = db.execute("SELECT id, request, phase, created, command, keeper FROM allocations ORDER BY created, id")
    return tuple(
        Allocation(
            id=row[0],
            request=_request(row[1]),
            grants=tuple(grants.get(row[0], ())),
            phase=Phase(row[2]),
            created=row[3],
            command=row[4],
            keeper=_keeper(row[5]),
        )
        for row in rows
    )


# An agent reads the whole register several times for each claim, and little of it has changed since.
@lru_cache(maxsize=_REMEMBERED)
def _request(text: str) -> Request:
    return request_from_dict(json.loads(text))


@lru_cache(maxsize=_REMEMBERED)
def _grant(text: str) -> Grant:
    return grant_from_dict(json.loads(text))


@lru_cache(maxsize=_REMEMBERED)
def _keeper(text: str) -> Keeper:
    return keeper_from_dict(json.loads(text))


_OWNERS = """
SELECT coalesce(units.allocation_id, parts.allocation_id, compute_units.allocation_id) AS owner
FROM units
LEFT JOIN parts ON parts.device_id = units.device_id
LEFT JOIN compute_units ON compute_units.device_id = units.device_id
WHERE units.gpu_uuid = ? AND units.unit >= ? AND units.unit < ? AND owner <> ? LIMIT 1
"""


def holder_of_room(db: sqlite3.Connection, slot: InstanceKey, *, but: str) -> str:
    """The allocation, other than that one, that holds something of the slot's memory slices; "" when none does."""
    start = slot.placement.start
    return _owner(db, slot.gpu_uuid, start, start + slot.placement.size, but)


def holder_on_gpu(db: sqlite3.Connection, gpu_uuid: str, *, but: str) -> str:
    """The allocation, other than that one, that holds something of the GPU; "" when none does."""
    return _owner(db, gpu_uuid, WHOLE_GPU_UNITS.start, WHOLE_GPU_UNITS.stop, but)


def _owner(db: sqlite3.Connection, gpu_uuid: str, start: int, end: int, but: str) -> str:
    row = db.execute(_OWNERS, (gpu_uuid, start, end, but)).fetchone()
    return "" if row is None else str(row[0])
