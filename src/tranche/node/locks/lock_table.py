"""Who holds a lock now, as the kernel's table of file locks (/proc/locks) has it.

The table names the process that took a lock, to everybody, but not processes that only a PID namespace outside of this one knows.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tranche.core.printable import one_line
from tranche.node.state.session import process_command

_TABLE = Path("/proc/locks")
_SHOWN = 100
"""Characters of a command line that are shown."""


class LockHolder(NamedTuple):
    """Who has a file lock: `pid` is 0 for a process that is not seen from here; `seconds` is for how long."""

    pid: int
    seconds: float

    def __str__(self) -> str:
        if not self.pid:
            return "a process that is not seen from here"
        command = one_line(process_command(self.pid))
        command = command if len(command) <= _SHOWN else f"{command[:_SHOWN]}..."
        return f"pid {self.pid} ({command})" if command else f"pid {self.pid}"


def lock_pids(file: int | Path, *, kind: str = "FLOCK", byte: int = 0, table: Path = _TABLE) -> tuple[int, ...]:
    """The processes that hold a lock of that kind on the file, which is open or at a path, and on that byte of it.

    Kinds are FLOCK, for the whole file, and POSIX. None when the table or the file cannot be read.
    """
    try:
        found = os.stat(file)
        lines = table.read_text().splitlines()
    except OSError:
        return ()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    # "7: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF"; who waits has an arrow after the number.
    fields = (line.split() for line in lines)
    return tuple(int(each[4]) for each in fields if each[1] == kind and each[5] == place and _covers(each, byte))


def _covers(fields: list[str], byte: int) -> bool:
    first, last = fields[6], fields[7]
    return int(first) <= byte and (last == "EOF" or byte <= int(last))
