"""Processes as /proc shows them: which there are, their state, and, to those who may know, their environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
_CHUNK: Final = 65536
"""More than most files of a process hold."""


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
        text = os.fsdecode(process_file(pid, "stat", proc))
    except OSError:
        return None
    # The command's name, in parentheses, may hold spaces and parentheses itself.
    fields = text.rpartition(")")[2].split()
    return _ProcessStat(fields[0], int(fields[1]), int(fields[19]))


def process_ids(proc: Path = PROC) -> Iterator[int]:
    """The pid of each process. One that starts meanwhile may be missed, and any may have ended already."""
    with os.scandir(proc) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                yield int(entry.name)


def process_environment(pid: int, proc: Path = PROC) -> list[bytes]:
    """The variables of that process, as NAME=VALUE; PermissionError if this user may not know them, OSError if it has ended."""
    return process_file(pid, "environ", proc).split(b"\0")


def process_group(pid: int, proc: Path = PROC) -> str:
    """The control group of version 2 of that process, from the top, "" without one; OSError if it has ended."""
    groups = process_groups(pid, proc).split("\n")
    return next((line[3:].strip("/") for line in groups if line.startswith("0::")), "")


def process_groups(pid: int, proc: Path = PROC) -> str:
    """The control groups of that process, as the kernel lists them; OSError if it has ended."""
    return os.fsdecode(process_file(pid, "cgroup", proc))


def process_file(pid: int, name: str, proc: Path = PROC) -> bytes:
    """What that file of the process holds; OSError if it has ended, or if this user may not know.

    A command reads such a file of every process, some more than once. With pathlib that would take three times as long.
    """
    file = os.open(f"{proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.read(file, _CHUNK)
        while more := os.read(file, _CHUNK):
            found += more
        return found
    finally:
        os.close(file)
