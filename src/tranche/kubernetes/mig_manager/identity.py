"""Who this MIG manager is: one name for each state folder, which outlives restarts, and one process at a time behind it."""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

from tranche.core.errors import LedgerUnavailable
from tranche.node.locks import open_lock_file


class ManagerIdentity:
    """The name in the state folder, held by a lock that dies with the process."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "mig-manager"
        self._descriptor: int | None = None
        self.name = ""

    def acquire(self) -> bool:
        """Take the name; False while another process has it. LedgerUnavailable when the folder cannot be written."""
        descriptor = open_lock_file(self._path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        try:
            name = os.read(descriptor, 64).decode(errors="replace").strip()
            if not _is_name(name):
                name = str(uuid.uuid4())
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, name.encode() + b"\n", 0)
                os.fsync(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise LedgerUnavailable(f"cannot write {self._path}: {error.strerror}") from error
        self.name, self._descriptor = name, descriptor
        return True

    def release(self) -> None:
        """Let another process have the name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _is_name(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
