"""The ledger's tables.

The tables themselves enforce who may have what. Each memory slice of each GPU is a unit with one owner: an allocation, or a
device that several allocations hold at once. So no device is held both exclusively and jointly. A shared device has an account of
memory and compute, which cannot be overdrawn, and one mechanism for all its parts. A divided device has compute slices, each with
one owner.
"""

from __future__ import annotations

import sqlite3

SCHEMA_VERSION = 1

ADOPT_SHARES = "adopt-shares"
"""A chore of a new ledger before its first grant: commands that a lost ledger knew may still run."""

WHOLE_GPU_UNITS = range(16)
"""The units of an uncut GPU: more than the memory slices of any board, so they do not depend on what a GPU shows."""

_TABLES = """
CREATE TABLE allocations (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, phase TEXT NOT NULL, created REAL NOT NULL,
    command TEXT NOT NULL, keeper TEXT NOT NULL, memory INTEGER NOT NULL, gpu_millionths INTEGER NOT NULL
) STRICT;
CREATE TABLE grants (
    allocation_id TEXT NOT NULL REFERENCES allocations(id) ON DELETE CASCADE, ordinal INTEGER NOT NULL,
    grant TEXT NOT NULL, PRIMARY KEY (allocation_id, ordinal)
) STRICT, WITHOUT ROWID;
CREATE TABLE devices (
    id TEXT PRIMARY KEY, gpu_uuid TEXT NOT NULL, use TEXT NOT NULL CHECK (use IN ('shared', 'divided')),
    memory INTEGER NOT NULL, memory_taken INTEGER NOT NULL DEFAULT 0 CHECK (memory_taken BETWEEN 0 AND memory),
    compute INTEGER NOT NULL, compute_taken INTEGER NOT NULL DEFAULT 0 CHECK (compute_taken BETWEEN 0 AND compute),
    holders INTEGER NOT NULL DEFAULT 0 CHECK (holders >= 0), sharing TEXT
) STRICT;
CREATE TABLE units (
    gpu_uuid TEXT NOT NULL, unit INTEGER NOT NULL,
    allocation_id TEXT REFERENCES allocations(id) ON DELETE CASCADE,
    device_id TEXT REFERENCES devices(id) ON DELETE CASCADE,
    PRIMARY KEY (gpu_uuid, unit), CHECK ((allocation_id IS NULL) <> (device_id IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX units_by_allocation ON units (allocation_id);
CREATE INDEX units_by_device ON units (device_id);
CREATE TABLE parts (
    device_id TEXT NOT NULL REFERENCES devices(id), allocation_id TEXT NOT NULL REFERENCES allocations(id) ON DELETE CASCADE,
    memory INTEGER NOT NULL CHECK (memory > 0), compute INTEGER NOT NULL CHECK (compute >= 0),
    sharing TEXT NOT NULL,
    PRIMARY KEY (device_id, allocation_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX parts_by_allocation ON parts (allocation_id);
CREATE TABLE compute_units (
    device_id TEXT NOT NULL REFERENCES devices(id), unit INTEGER NOT NULL,
    allocation_id TEXT NOT NULL REFERENCES allocations(id) ON DELETE CASCADE, PRIMARY KEY (device_id, unit)
) STRICT, WITHOUT ROWID;
CREATE INDEX compute_units_by_allocation ON compute_units (allocation_id);
CREATE TRIGGER part_taken AFTER INSERT ON parts BEGIN
    SELECT RAISE(ABORT, 'the device is divided, not shared') FROM devices WHERE id = NEW.device_id AND use <> 'shared';
    SELECT RAISE(ABORT, 'the device is shared by another mechanism') FROM devices
        WHERE id = NEW.device_id AND sharing IS NOT NEW.sharing;
    UPDATE devices SET memory_taken = memory_taken + NEW.memory, compute_taken = compute_taken + NEW.compute,
        holders = holders + 1 WHERE id = NEW.device_id;
END;
CREATE TRIGGER part_given_back AFTER DELETE ON parts BEGIN
    UPDATE devices SET memory_taken = memory_taken - OLD.memory, compute_taken = compute_taken - OLD.compute,
        holders = holders - 1 WHERE id = OLD.device_id;
    DELETE FROM devices WHERE id = OLD.device_id AND holders = 0;
END;
CREATE TRIGGER compute_taken AFTER INSERT ON compute_units BEGIN
    SELECT RAISE(ABORT, 'the device is shared, not divided') FROM devices WHERE id = NEW.device_id AND use <> 'divided';
    UPDATE devices SET compute_taken = compute_taken + 1, holders = holders + 1 WHERE id = NEW.device_id;
END;
CREATE TRIGGER compute_given_back AFTER DELETE ON compute_units BEGIN
    UPDATE devices SET compute_taken = compute_taken - 1, holders = holders - 1 WHERE id = OLD.device_id;
    DELETE FROM devices WHERE id = OLD.device_id AND holders = 0;
END;
CREATE TABLE chores (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TABLE owned_instances (
    gpu_uuid TEXT NOT NULL, profile TEXT NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
    requested INTEGER NOT NULL, PRIMARY KEY (gpu_uuid, profile, start, size)
) STRICT, WITHOUT ROWID;
CREATE TABLE plans (
    id TEXT PRIMARY KEY, purpose TEXT NOT NULL, created REAL NOT NULL, session TEXT NOT NULL,
    allocation_id TEXT, status TEXT NOT NULL
) STRICT;
CREATE INDEX plans_by_status ON plans (status);
CREATE TABLE steps (
    plan_id TEXT NOT NULL REFERENCES plans(id) ON DELETE CASCADE, ordinal INTEGER NOT NULL, step TEXT NOT NULL,
    status TEXT NOT NULL, before TEXT, PRIMARY KEY (plan_id, ordinal)
) STRICT, WITHOUT ROWID;
CREATE TABLE changing_gpus (
    gpu_uuid TEXT PRIMARY KEY, plan_id TEXT NOT NULL REFERENCES plans(id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE TABLE change_totals (
    kind TEXT NOT NULL, outcome TEXT NOT NULL, bound REAL NOT NULL, changes INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (kind, outcome, bound)
) STRICT, WITHOUT ROWID;
CREATE TABLE waiters (
    position INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, request TEXT NOT NULL,
    created REAL NOT NULL, command TEXT NOT NULL, pid INTEGER NOT NULL, uid INTEGER NOT NULL
) STRICT;
CREATE TABLE events (
    position INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
    gpu_uuid TEXT NOT NULL, allocation_id TEXT NOT NULL, message TEXT NOT NULL, cause INTEGER, data TEXT
) STRICT;
CREATE TABLE gpu_uses (
    gpu_uuid TEXT PRIMARY KEY, use TEXT NOT NULL CHECK (use IN ('auto', 'mig', 'shared', 'off'))
) STRICT, WITHOUT ROWID;
CREATE TABLE timeslices (gpu_uuid TEXT PRIMARY KEY, length TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE user_quotas (
    uid TEXT PRIMARY KEY, gpu_percent INTEGER, memory INTEGER, shares INTEGER, time_limit INTEGER, gpu_hours INTEGER,
    weight INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE fence (uid INTEGER PRIMARY KEY) STRICT;
CREATE TABLE idle_policy (after INTEGER NOT NULL, ends INTEGER NOT NULL) STRICT;
CREATE TABLE preemption (allowed INTEGER PRIMARY KEY) STRICT;
CREATE TABLE idle (
    allocation_id TEXT PRIMARY KEY REFERENCES allocations(id) ON DELETE CASCADE, since REAL NOT NULL, seen REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE usage (
    day INTEGER NOT NULL, uid INTEGER NOT NULL, gpu_seconds REAL NOT NULL, share_seconds REAL NOT NULL,
    shares INTEGER NOT NULL, preemptible_seconds REAL NOT NULL, PRIMARY KEY (day, uid)
) STRICT, WITHOUT ROWID;
CREATE TABLE cordons (
    gpu_uuid TEXT PRIMARY KEY, user TEXT NOT NULL, reason TEXT NOT NULL, since REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE reservations (
    id TEXT PRIMARY KEY, gpu_uuids TEXT NOT NULL, begins REAL NOT NULL, ends REAL NOT NULL CHECK (ends > begins),
    users TEXT NOT NULL, names TEXT NOT NULL, user TEXT NOT NULL, used INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""


def create(db: sqlite3.Connection) -> None:
    """Make the tables in an empty database, within the caller's transaction."""
    statement = ""
    for line in _TABLES.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):  # executescript would end the caller's transaction
            db.execute(statement)
            statement = ""
    db.execute("INSERT INTO chores VALUES (?)", (ADOPT_SHARES,))
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def lacks(db: sqlite3.Connection) -> tuple[str, ...]:
    """The columns of this format that the database lacks, as `table.column`."""
    columns = "SELECT m.name || '.' || c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
    whole = sqlite3.connect(":memory:")
    try:
        create(whole)
        wanted = {row[0] for row in whole.execute(columns)}
    finally:
        whole.close()
    return tuple(sorted(wanted - {row[0] for row in db.execute(columns)}))
