"""A copy of the ledger that may leave the machine: the same tables, without texts by people and programs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tranche.core.errors import LedgerCorrupt
from tranche.core.redaction import BEFORE, EVENT_DATA, GRANT, KEEPER, REQUEST, STEP, Shape, kept, program, reduced
from tranche.node.store import schema
from tranche.node.store.ledger_copy import copied

Column = Callable[[Any], Any]


def _json(shape: Shape) -> Column:
    def column(value: Any) -> Any:
        try:
            return None if value is None else json.dumps(reduced(json.loads(value), shape))
        except ValueError:
            return "{}"

    return column


def _left_out(value: Any) -> str:
    return ""


_TABLES: Mapping[str, Mapping[str, Column]] = {
    "allocations": {
        "id": kept,
        "request": _json(REQUEST),
        "phase": kept,
        "created": kept,
        "command": program,
        "keeper": _json(KEEPER),
        "memory": kept,
        "gpu_millionths": kept,
    },
    "grants": {"allocation_id": kept, "ordinal": kept, "grant": _json(GRANT)},
    "devices": dict.fromkeys(("id", "gpu_uuid", "use", "memory", "compute", "sharing"), kept),
    "units": dict.fromkeys(("gpu_uuid", "unit", "allocation_id", "device_id"), kept),
    "parts": dict.fromkeys(("device_id", "allocation_id", "memory", "compute", "sharing"), kept),
    "compute_units": dict.fromkeys(("device_id", "unit", "allocation_id"), kept),
    "owned_instances": dict.fromkeys(("gpu_uuid", "profile", "start", "size", "requested"), kept),
    "plans": {
        **dict.fromkeys(("id", "created", "session", "allocation_id", "status"), kept),
        "purpose": _left_out,
    },
    "steps": {"plan_id": kept, "ordinal": kept, "step": _json(STEP), "status": kept, "before": _json(BEFORE)},
    "changing_gpus": dict.fromkeys(("gpu_uuid", "plan_id"), kept),
    "waiters": {
        **dict.fromkeys(("position", "id", "created", "pid", "uid"), kept),
        "request": _json(REQUEST),
        "command": program,
    },
    "events": {
        **dict.fromkeys(("position", "time", "kind", "gpu_uuid", "allocation_id", "cause"), kept),
        "message": _left_out,
        "data": _json(EVENT_DATA),
    },
    "change_totals": dict.fromkeys(("kind", "outcome", "bound", "changes", "seconds"), kept),
    "chores": {"name": kept},
    "cordons": {"gpu_uuid": kept, "user": _left_out, "reason": _left_out, "since": kept},
    "reservations": {
        **dict.fromkeys(("id", "gpu_uuids", "begins", "ends", "users", "used"), kept),
        "names": _left_out,
        "user": _left_out,
    },
    "user_quotas": dict.fromkeys(("uid", "gpu_percent", "memory", "shares", "time_limit", "gpu_hours", "weight"), kept),
    "fence": {"uid": kept},
    "idle_policy": dict.fromkeys(("after", "ends"), kept),
    "preemption": {"allowed": kept},
    "idle": dict.fromkeys(("allocation_id", "since", "seen"), kept),
    "usage": dict.fromkeys(("day", "uid", "gpu_seconds", "share_seconds", "shares", "preemptible_seconds"), kept),
    "gpu_uses": dict.fromkeys(("gpu_uuid", "use"), kept),
}


def ledger_extract(ledger: Path) -> bytes:
    """The extract as the content of an SQLite file. Raises OSError when the ledger may not be read.

    Raises LedgerUnavailable when other processes write the ledger all the time, and LedgerCorrupt when it is no ledger of this
    version.
    """
    try:
        source = copied(ledger)
    except sqlite3.DatabaseError as error:
        raise LedgerCorrupt(f"the ledger {ledger} is damaged: {error}") from error
    target = sqlite3.connect(":memory:", isolation_level=None)
    try:
        schema.create(target)
        target.execute("DELETE FROM chores")
        there = {row[0] for row in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table, columns in _TABLES.items():
            if table in there:
                _copy(source, target, table, columns)
        return target.serialize()
    except sqlite3.DatabaseError as error:
        raise LedgerCorrupt(f"the ledger {ledger} is damaged: {error}") from error
    finally:
        source.close()
        target.close()


def journal_extract(extract: bytes) -> list[dict[str, Any]]:
    """The plans of an extract with their steps, oldest first."""
    db = sqlite3.connect(":memory:")
    try:
        db.deserialize(extract)
        plans = db.execute("SELECT id, created, session, allocation_id, status FROM plans ORDER BY created").fetchall()
        return [
            {
                "id": id_,
                "created": created,
                "session": session,
                "allocationId": allocation_id,
                "status": status,
                "steps": [
                    {"status": how, "step": json.loads(step), "before": None if before is None else json.loads(before)}
                    for step, how, before in db.execute(
                        "SELECT step, status, before FROM steps WHERE plan_id = ? ORDER BY ordinal", (id_,)
                    )
                ],
            }
            for id_, created, session, allocation_id, status in plans
        ]
    finally:
        db.close()


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, table: str, columns: Mapping[str, Column]) -> None:
    present = {row[1] for row in source.execute(f"PRAGMA table_info({table})")}
    names = [name for name in columns if name in present]
    chosen = ", ".join(names)
    marks = ", ".join("?" for _ in names)
    for row in source.execute(f"SELECT {chosen} FROM {table}").fetchall():
        values = [columns[name](value) for name, value in zip(names, row, strict=True)]
        target.execute(f"INSERT INTO {table} ({chosen}) VALUES ({marks})", values)
