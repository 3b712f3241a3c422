"""The durable record of one machine: a SQLite database in WAL mode that every tranche process opens.

`tranche.node.store.schema` defines its tables and their constraints.

`synchronous=NORMAL` is enough: a power loss may take the last records, but it also takes the processes and GPU instances that
they describe. A killed process loses nothing.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tranche.core.errors import (
    LedgerCorrupt,
    LedgerTooNew,
    LedgerUnavailable,
    PermissionDenied,
    TrancheError,
    WaitTimeout,
)
from tranche.node.locks.locks import FileLock, LockHolder, continuing_who_holds, lock_pids, stops_held_back
from tranche.node.state.session import StateFolder
from tranche.node.state.state_file import no_files_left, no_permission, refuse_no_file, register_of_another
from tranche.node.store import schema
from tranche.node.store.ledger_copy import copied, ledger_content

_BUSY_SECONDS = 60.0
_MAKING_SECONDS = 5.0
"""The process that makes a ledger is alone with it; others open it for moments at most."""
_SUSPECT_SECONDS = 1.0
"""Transactions are shorter. After this, check which process holds up the others."""
_HEADER = 100
"""In bytes: the header of every SQLite database."""
_WRITE_LOCK = 120
"""The byte of the log's index that SQLite locks for the writer (the file format's WAL_WRITE_LOCK)."""


class Ledger:
    """An open ledger. Safe to use from several threads: one transaction runs at a time.

    A `read_only` ledger needs no write permission and makes no file.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._lock = threading.RLock()
        self._file: tuple[int, ...] = _NOT_OPEN_YET
        self._size = 0
        self._log_size = 0
        self._patience = _BUSY_SECONDS
        self._timeout: type[TrancheError] = LedgerUnavailable
        self.unwritable: LedgerUnavailable | None = None
        """Why a ledger that this user may write is read from a copy; None when it is not."""
        self._connection: sqlite3.Connection
        if read_only:
            with _explained(path):
                self._connection = self._copied()
            return
        with _explained(path):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except PermissionError as error:
                raise no_permission(f"the ledger {path}") from error
            except OSError as error:
                raise LedgerUnavailable(f"cannot create the state folder {path.parent}: {error.strerror}") from error
            _refuse_strange(path)
            if os.path.exists(StateFolder(path.parent).socket):
                with suppress(OSError):  # the ledger is there, or cannot be made, which SQLite reports
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
                *file, self._size = _identity(path)
                self._file = tuple(file)
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        version = self._version()
        if version > schema.SCHEMA_VERSION:
            raise self._too_new(version)
        if version < schema.SCHEMA_VERSION:
            # Switching to WAL fails at once, despite the timeout, when another process is doing the same.
            with FileLock(self.path.with_name(f"{self.path.name}.creating")):
                self._make()
        self._connection.execute("PRAGMA synchronous = NORMAL")
        # However SQLite was built, the log never shrinks while a process has it open. So a shorter log was truncated by others.
        self._connection.execute("PRAGMA journal_size_limit = -1")
        self._connection.execute("PRAGMA foreign_keys = ON")

    def _copied(self) -> sqlite3.Connection:
        """The ledger's current content, in memory and in the current format."""
        _refuse_strange(self.path)
        try:
            connection = copied(self.path)
        except PermissionError as error:
            raise PermissionDenied(
                f"no permission to read the ledger {self.path}",
                hint="use sudo, or ask an administrator to start the service: tranche serve",
            ) from error
        except OSError as error:
            raise LedgerUnavailable(f"the ledger {self.path} cannot be read: {error.strerror}") from error
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > schema.SCHEMA_VERSION:
            raise self._too_new(version)
        if version == 0:
            schema.create(connection)
        return connection

    def _too_new(self, version: int) -> LedgerTooNew:
        return LedgerTooNew(
            f"the ledger {self.path} was written by a newer version of tranche (format {version}, "
            f"this version supports {schema.SCHEMA_VERSION})",
            hint="upgrade tranche",
        )

    def _version(self) -> int:
        version: int = self._connection.execute("PRAGMA user_version").fetchone()[0]
        return version

    def _make(self) -> None:
        """Make the tables, unless another process has. The caller's lock keeps other processes out."""
        if self._version() == schema.SCHEMA_VERSION:
            return
        if self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise LedgerCorrupt(f"{self.path} is a database, but not a ledger", hint=_MOVE_AWAY)
        self._connection.execute(f"PRAGMA busy_timeout = {round(_MAKING_SECONDS * 1000)}")
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            raise _emptied(self.path) from error
        self._connection.execute(f"PRAGMA busy_timeout = {round(_BUSY_SECONDS * 1000)}")
        with self.write() as db:
            schema.create(db)

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that may write: keeps everything, or nothing when the block raises."""
        if self.read_only:
            raise register_of_another(self.path.parent) or no_permission(f"the ledger {self.path}")
        with self._lock, _explained(self.path), stops_held_back():
            # An interrupt may be raised after any of these calls: none may leave a transaction open.
            try:
                self._begin_to_write()
                self._refuse_lost()
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def waiting(self, seconds: float | None) -> Iterator[None]:
        """Wait for other writers at most `seconds` during the block, and never more than a minute.

        When they take longer, raises WaitTimeout, or LedgerUnavailable when `seconds` is None.
        """
        before = self._patience, self._timeout
        self._patience = _BUSY_SECONDS if seconds is None else min(seconds, _BUSY_SECONDS)
        self._timeout = LedgerUnavailable if seconds is None else WaitTimeout
        try:
            yield
        finally:
            self._patience, self._timeout = before

    def _begin_to_write(self) -> None:
        """Wait for the write lock; meanwhile, continues a stopped process that holds it."""
        busy = "PRAGMA busy_timeout = {}"
        brief = min(self._patience, _SUSPECT_SECONDS)
        index = self.path.with_name(f"{self.path.name}-shm")
        try:
            self._connection.execute(busy.format(round(brief * 1000)))
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise
            with continuing_who_holds(lambda: lock_pids(index, kind="POSIX", byte=_WRITE_LOCK)):
                self._connection.execute(busy.format(round((self._patience - brief) * 1000)))
                self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            pids = lock_pids(index, kind="POSIX", byte=_WRITE_LOCK)
            if not _is_busy(error):
                raise
            holder = LockHolder(pids[0] if pids else 0, 0.0)
            ending = f", for example with kill -9 {holder.pid}" if holder.pid else ""
            raise self._timeout(
                f"the ledger {self.path} could not be written for {self._patience:g} s: {holder} is writing to it",
                hint=f"end that process{ending}: SQLite rolls back its unfinished write",
            ) from error
        finally:
            self._connection.execute(busy.format(round(_BUSY_SECONDS * 1000)))

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one consistent state of the ledger."""
        with self._lock, _explained(self.path):
            nested = self._connection.in_transaction
            if self.read_only and not nested:
                self._connection.close()
                self._connection = self._copied()
            try:
                if not nested:
                    self._connection.execute("BEGIN")
                    self._refuse_lost()
                yield self._connection
            finally:
                if not nested and self._connection.in_transaction:
                    self._connection.execute("COMMIT")

    def version(self) -> int:
        """A number that changes when another process, or another open ledger, has written."""
        with self._lock, _explained(self.path):
            version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
            self._refuse_lost()
            return version

    def _refuse_lost(self) -> None:
        """Raises LedgerUnavailable when the file was moved or replaced: no other process would see what is written."""
        if self._file == _NOT_OPEN_YET:
            return
        *file, size = _identity(self.path)
        if tuple(file) != self._file:
            raise LedgerUnavailable(
                f"the ledger {self.path} was removed or replaced while it was open",
                hint="run the command again: it creates a new ledger and finds the existing shares",
            )
        # Neither Tranche nor SQLite makes either file smaller while it is open.
        log = max(0, _identity(self.path.with_name(f"{self.path.name}-wal"))[2])
        if size < self._size or log < self._log_size:
            raise _emptied(self.path)
        self._size, self._log_size = size, log

    def check(self) -> None:
        """Check the whole file, every index and every table's columns. Raises LedgerCorrupt when something is wrong."""
        with self.read() as db:
            findings = [row[0] for row in db.execute("PRAGMA integrity_check(5)")]
            lacking = schema.lacks(db)
        if f"code={sqlite3.SQLITE_IOERR_SHORT_READ}" in findings[0]:
            raise _emptied(self.path)
        if findings != ["ok"]:
            found = " ".join(findings[0].split())  # SQLite puts several findings into one
            raise LedgerCorrupt(f"the ledger {self.path} is damaged: {found}", hint=_MOVE_AWAY)
        if lacking:
            raise LedgerCorrupt(f"the ledger {self.path} is damaged: it lacks {', '.join(lacking)}", hint=_MOVE_AWAY)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()


def open_to_read(places: StateFolder) -> Ledger:
    """The ledger for reading only: a copy if this user may not write it or there is no room to write."""
    if not places.writable:
        return Ledger(places.ledger, read_only=True)
    try:
        return Ledger(places.ledger)
    except LedgerUnavailable as error:
        if not places.ledger.is_file():
            raise
        ledger = Ledger(places.ledger, read_only=True)
        ledger.unwritable = error
        return ledger


def content_for_users(ledger: Path) -> tuple[bytes, bytes]:
    """The bytes of the database and of its log, for users who may not open a private ledger. OSError if they cannot be read."""
    return ledger_content(ledger)


def make_private(ledger: Path) -> None:
    """Let only the owner open the ledger, which is made first if there is none. Raises TrancheError if it cannot be made.

    A user who may read a file may also lock it (fcntl), and so block every writer of SQLite. A ledger that is
    made beside a service's socket is private from the start.
    SQLite gives its log and its index of readers the mode of the database.
    """
    try:
        Ledger(ledger).close()
    except TrancheError:
        if not ledger.is_file():
            raise
    for each in (ledger, ledger.with_name(f"{ledger.name}-wal"), ledger.with_name(f"{ledger.name}-shm")):
        with suppress(FileNotFoundError):
            each.chmod(0o600)


def lacks_room(error: LedgerUnavailable) -> bool:
    """Whether the ledger could not be written because its file system is full."""
    cause = error.__cause__
    full = sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR
    return isinstance(cause, sqlite3.OperationalError) and cause.sqlite_errorcode & 0xFF in full


_NOT_OPEN_YET = (0, 0)


def _identity(path: Path) -> tuple[int, int, int]:
    """The file's device, inode number and size in bytes; all -1 when there is no file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return (-1, -1, -1)
    return found.st_dev, found.st_ino, found.st_size


_MOVE_AWAY = (
    "end the workloads that tranche started, move the file away, and run the command again: it finds and adopts the "
    "instances on the GPUs"
)


def _emptied(path: Path) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"the ledger {path} or its log was emptied or truncated while other processes had it open",
        hint=f"move {path}* away, and run the command again: it creates a new ledger and finds the existing shares",
    )


def _refuse_strange(path: Path) -> None:
    """Raises LedgerUnavailable if a path is not a file, and LedgerCorrupt if the ledger was emptied while others have it open."""
    log = path.with_name(f"{path.name}-wal")
    for each in (path, log, path.with_name(f"{path.name}-shm")):
        refuse_no_file(each)
    if not os.path.exists(path) or path.stat().st_size >= _HEADER:
        return
    # SQLite would treat it as a new database, remove the log that others write, and wait for them.
    if os.path.exists(log) and log.stat().st_size:
        raise _emptied(path)


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours, except schema violations, which are the caller's defects."""
    try:
        yield
    except TrancheError:
        raise
    except sqlite3.IntegrityError:
        raise
    except sqlite3.OperationalError as error:
        text = str(error)
        if "readonly" in text or "unable to open" in text:
            if (refused := register_of_another(path.parent)) is not None:
                raise refused from error
            if not os.access(path.parent, os.X_OK):
                raise no_permission(f"the ledger {path}") from error
            if path.is_dir():
                raise LedgerUnavailable(f"the ledger {path} is a folder, not a file") from error
            raise LedgerUnavailable(
                f"the ledger {path} cannot be written: {text}",
                hint="free up space or inodes on its file system: no more files can be created"
                if no_files_left(path.parent)
                else "make the state folder writable for root",
            ) from error
        if error.sqlite_errorcode == sqlite3.SQLITE_IOERR_SHORT_READ:
            raise _emptied(path) from error
        if "malformed" in text or "no such table" in text or "no such column" in text:
            raise LedgerCorrupt(f"the ledger {path} is damaged: {text}", hint=_MOVE_AWAY) from error
        hint = "free up space on its file system"
        hint = hint if "full" in text or "disk I/O" in text else ""
        raise LedgerUnavailable(f"the ledger {path} cannot be used: {text}", hint=hint) from error
    except sqlite3.DatabaseError as error:
        raise LedgerCorrupt(f"the ledger {path} is damaged: {error}", hint=_MOVE_AWAY) from error
