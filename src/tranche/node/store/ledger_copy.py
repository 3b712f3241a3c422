"""A register for users who may read its files but not write them.

SQLite's own readers write too, to a file beside the database that tracks readers. Users who may not write read a copy. This makes
nothing in the folder and does not hold up writers.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from tranche.core.errors import LedgerUnavailable, ServiceUnavailable
from tranche.node.state.session import StateFolder
from tranche.node.state.state_file import open_state_file

_ATTEMPTS = 200
_SETTLED_SECONDS = 0.02
_WAIT_SECONDS = 0.01
_WAL_HEADER = 32


def copied(ledger: Path) -> sqlite3.Connection:
    """The current database, in memory; an empty one when there is none. Raises OSError when it may not be read.

    The ledger of a machine with a service is private, and the service sends a copy. It makes a ledger that was lost.
    """
    socket = StateFolder(ledger.parent).socket
    try:
        if os.path.exists(ledger) or not os.path.exists(socket):
            return _in_memory(*ledger_content(ledger))
    except PermissionError:
        if not os.path.exists(socket):
            raise
    return _in_memory(*_from_service(socket))


def _from_service(path: Path) -> tuple[bytes, bytes]:
    from tranche.node.state.connection import ANSWERS_WITHIN_SECONDS, ask  # slow to import, and root needs none

    message, content = ask(path, "ledger", ANSWERS_WITHIN_SECONDS)
    if message.get("event") != "ledger" or len(content) != 2:
        raise ServiceUnavailable(
            "the service sent something other than the ledger", hint="ask an administrator to restart it"
        )
    return content[0], content[1]


def ledger_content(ledger: Path) -> tuple[bytes, bytes]:
    """The bytes of the database and of its log, which fit together; empty without a ledger. OSError if they may not be read."""
    for _ in range(_ATTEMPTS):
        files = _read(ledger)
        if files is not None:
            return files
        time.sleep(_WAIT_SECONDS)
    raise LedgerUnavailable(f"the ledger {ledger} is being written constantly", hint="run the command again")


def _read(ledger: Path) -> tuple[bytes, bytes] | None:
    """A matching database and log; None when they may not match, because the log was emptied meanwhile.

    The log is append-only, and SQLite ignores an incomplete end. When the log is emptied, its frames are in the database, and it
    begins with new numbers. A database written within the last clock tick could be written again unnoticed.
    """
    wal = ledger.with_name(f"{ledger.name}-wal")
    stamp, begins = _stamp(ledger), _bytes(wal)[:_WAL_HEADER]
    if time.time_ns() - stamp[0] < _SETTLED_SECONDS * 1e9:
        return None
    database, log = _bytes(ledger), _bytes(wal)
    if _stamp(ledger) != stamp or (begins and log[:_WAL_HEADER] != begins):
        return None
    return database, log


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _bytes(path: Path) -> bytes:
    try:
        with open(open_state_file(path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _in_memory(database: bytes, log: bytes) -> sqlite3.Connection:
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    if database:
        _copy(database, log, memory)
    return memory


def _copy(database: bytes, log: bytes, memory: sqlite3.Connection) -> None:
    """Let SQLite join database and log in the temporary folder, or in memory if that is full."""
    import tempfile  # slow to import, and most commands may write the ledger

    for root in (None, "/dev/shm"):
        try:
            with tempfile.TemporaryDirectory(prefix="tranche-", dir=root) as folder:
                path = Path(folder) / "ledger.db"
                path.write_bytes(database)
                path.with_name("ledger.db-wal").write_bytes(log)
                disk = sqlite3.connect(path, isolation_level=None)
                try:
                    disk.backup(memory)
                    return
                finally:
                    disk.close()
        except (OSError, sqlite3.OperationalError) as error:
            reason = error
    raise LedgerUnavailable(
        f"there is no space for the copy of the ledger that this command reads: {reason}",
        hint=f"free up space in {tempfile.gettempdir()}, or name another folder with TMPDIR",
    )
