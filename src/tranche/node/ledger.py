"""The durable record of one machine: a SQLite database in WAL mode that every tranche process opens.

Grants are also written unit by unit under a primary key, so the database itself refuses to give one memory slice twice.
`synchronous=NORMAL` is enough: a power loss may take the last records with it, but it takes the processes and the GPU
instances that they describe as well; a killed process loses nothing.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tranche.core.errors import LedgerCorrupt, LedgerTooNew, LedgerUnavailable, PermissionDenied, TrancheError
from tranche.node.locks import FileLock

SCHEMA_VERSION = 1
_BUSY_SECONDS = 60.0

_SCHEMA = """
CREATE TABLE allocations (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, phase TEXT NOT NULL, created REAL NOT NULL,
    command TEXT NOT NULL, holder_pid INTEGER NOT NULL, holder_started INTEGER NOT NULL
) STRICT;
CREATE TABLE grants (
    allocation_id TEXT NOT NULL REFERENCES allocations(id) ON DELETE CASCADE, ordinal INTEGER NOT NULL,
    gpu_uuid TEXT NOT NULL, profile TEXT, start INTEGER, size INTEGER, PRIMARY KEY (allocation_id, ordinal)
) STRICT;
CREATE TABLE granted_units (
    gpu_uuid TEXT NOT NULL, unit INTEGER NOT NULL,
    allocation_id TEXT NOT NULL REFERENCES allocations(id) ON DELETE CASCADE, PRIMARY KEY (gpu_uuid, unit)
) STRICT, WITHOUT ROWID;
CREATE INDEX granted_units_by_allocation ON granted_units (allocation_id);
CREATE TABLE owned_instances (
    gpu_uuid TEXT NOT NULL, profile TEXT NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
    PRIMARY KEY (gpu_uuid, profile, start, size)
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
CREATE TABLE waiters (
    position INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, request TEXT NOT NULL,
    created REAL NOT NULL, command TEXT NOT NULL, pid INTEGER NOT NULL
) STRICT;
CREATE TABLE events (
    position INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
    gpu_uuid TEXT NOT NULL, allocation_id TEXT NOT NULL, message TEXT NOT NULL
) STRICT;
"""


class Ledger:
    """An open ledger. Safe to use from several threads: one transaction runs at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        with _explained(path):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except PermissionError as error:
                raise _no_permission(path) from error
            except OSError as error:
                raise LedgerUnavailable(f"cannot make the state folder {path.parent}: {error.strerror}") from error
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        version = self._version()
        if version == 0:
            self._create()
        elif version > SCHEMA_VERSION:
            raise LedgerTooNew(
                f"the ledger {self.path} was written by a newer version of tranche (format {version}, "
                f"this version knows {SCHEMA_VERSION})",
                hint="upgrade tranche, or choose another folder with --state-dir",
            )
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA foreign_keys = ON")

    def _version(self) -> int:
        version: int = self._connection.execute("PRAGMA user_version").fetchone()[0]
        return version

    def _create(self) -> None:
        # Switching to WAL fails at once when another process is doing the same, whatever the timeout.
        with FileLock(self.path.with_name(f"{self.path.name}.creating")):
            self._create_alone()

    def _create_alone(self) -> None:
        if self._version() != 0:
            return
        if self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise LedgerCorrupt(f"{self.path} is a database, but not a ledger", hint=_MOVE_AWAY)
        self._connection.execute("PRAGMA journal_mode = WAL")
        with self.write():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that may write: all of it is kept, or nothing when the block raises."""
        with self._lock, _explained(self.path):
            # An interrupt is raised after whichever call it meets: none of them may leave a transaction open.
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one consistent state of the ledger."""
        with self._lock, _explained(self.path):
            nested = self._connection.in_transaction
            try:
                if not nested:
                    self._connection.execute("BEGIN")
                yield self._connection
            finally:
                if not nested and self._connection.in_transaction:
                    self._connection.execute("COMMIT")

    def check(self) -> None:
        """Read the whole file and every index; LedgerCorrupt when something does not hold."""
        with self.read() as db:
            findings = [row[0] for row in db.execute("PRAGMA integrity_check(5)")]
        if findings != ["ok"]:
            raise LedgerCorrupt(f"the ledger {self.path} is damaged: {findings[0]}", hint=_MOVE_AWAY)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()


_MOVE_AWAY = (
    "end the workloads that tranche started, move the file away, and run the command again: instances are found on the "
    "GPUs and adopted"
)


def _no_permission(path: Path) -> PermissionDenied:
    return PermissionDenied(
        f"no permission to write the ledger {path}", hint="run as root, or choose another folder with --state-dir"
    )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours; a broken rule of the schema stays what it is, a defect of the caller."""
    try:
        yield
    except TrancheError:
        raise
    except sqlite3.IntegrityError:
        raise
    except sqlite3.OperationalError as error:
        text = str(error)
        if "readonly" in text or "unable to open" in text:
            if not os.access(path.parent, os.X_OK):
                raise _no_permission(path) from error
            if path.is_dir():
                raise LedgerUnavailable(f"the ledger {path} is a folder, not a file") from error
            raise LedgerUnavailable(
                f"the ledger {path} cannot be written: {text}",
                hint="the state folder must be writable; choose another with --state-dir",
            ) from error
        if "malformed" in text or "no such table" in text or "no such column" in text:
            raise LedgerCorrupt(f"the ledger {path} is damaged: {text}", hint=_MOVE_AWAY) from error
        raise LedgerUnavailable(f"the ledger {path} cannot be used: {text}") from error
    except sqlite3.DatabaseError as error:
        raise LedgerCorrupt(f"the ledger {path} is damaged: {error}", hint=_MOVE_AWAY) from error
