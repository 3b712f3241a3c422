"""A process as /proc/PID/stat shows it to every user."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")


class _ProcessStat(NamedTuple):
    """The state's letter, the parent's pid, and the start in clock ticks since boot."""

    state: str
    parent: int
    started: int

    @property
    def lives(self) -> bool:
        """Whether it is alive: a zombie is not."""
        return self.state not in "ZX"

    @property
    def stopped(self) -> bool:
        """Whether SIGSTOP, Ctrl-Z or a debugger has stopped it: it does nothing until continued."""
        return self.state in "Tt"


def process_stat(pid: int, proc: Path = PROC) -> _ProcessStat | None:
    """The kernel's facts about that process; None if there is none."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command's name, in parentheses, may hold spaces and parentheses itself.
    fields = text.rpartition(")")[2].split()
    return _ProcessStat(fields[0], int(fields[1]), int(fields[19]))
