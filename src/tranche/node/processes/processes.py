"""What is left of a share's processes, from /proc: those that inherited the share, and unreadable ones that may have.

A child that closes its inherited files, as Python's subprocess does, no longer holds the share's lock. One that forks twice loses
its parent. Both keep their environment, which names the share.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from tranche.core.keeper import ProcessKeeper
from tranche.hardware.process_stat import PROC, process_environment, process_file, process_ids, process_stat
from tranche.node.state.session import pid_namespace

MARK = "TRANCHE_ALLOCATION"
"""The variable that names a workload's share."""

KEY = "TRANCHE_KEY"
"""The variable with the share's key. Every user can read the share's name; only its own processes and root know the key."""

REGISTER = "TRANCHE_REGISTER"
"""The variable that names the state folder with the share's register."""


class Process(NamedTuple):
    """A process as any user may see it: parent, real user, and start in clock ticks since boot."""

    pid: int
    parent: int
    uid: int
    started: int

    @property
    def keeper(self) -> ProcessKeeper:
        """The process as the keeper of a share."""
        return ProcessKeeper(self.pid, self.started, pid_namespace(), uid=self.uid, begun=self.started)


class FoundProcesses(NamedTuple):
    """The found processes of a share. `inherited` carry its name; `hidden` may, but their environment is unreadable."""

    inherited: tuple[Process, ...] = ()
    hidden: tuple[Process, ...] = ()


NO_TRACES = FoundProcesses()


def digest_of(key: str) -> str:
    """The digest of a share's key, for the register: every user may read the register."""
    import hashlib  # loads OpenSSL, and read-only commands need no key

    return hashlib.sha256(os.fsencode(key)).hexdigest()


def find_traces(allocation_id: str, *, uid: int, since: int, key_digest: str = "") -> FoundProcesses:
    """The traces of a share. User `uid` started its command at `since`, in clock ticks since boot.

    If the share has a key, processes of users other than `uid` and root must know it to count.

    One look goes from process to process and may miss a fork. So only a second look can show that there are none.
    """
    found = _look(allocation_id, uid, since, key_digest)
    return found if found.inherited else _look(allocation_id, uid, since, key_digest)


def process_at(pid: int, proc: Path = PROC) -> Process | None:
    """The living process with that pid; None when there is none, or only a zombie."""
    stat = process_stat(pid, proc)
    if stat is None or not stat.lives:
        return None
    try:
        status = os.fsdecode(process_file(pid, "status", proc))
    except OSError:
        return None
    # Not splitlines: the name, which a process gives itself, may hold what else ends a line there.
    uid = next(line.split()[1] for line in status.split("\n") if line.startswith("Uid:"))
    return Process(pid, stat.parent, int(uid), stat.started)


def children_of(pid: int) -> tuple[Process, ...]:
    """The living children of a process, oldest first."""
    found = (process_at(each) for each in process_ids())
    return tuple(sorted((each for each in found if each and each.parent == pid), key=lambda process: process.started))


def ancestors_of(pid: int, proc: Path = PROC) -> tuple[int, ...]:
    """The parent of a process, its grandparent, and so on."""
    found: list[int] = []
    while (process := process_at(pid, proc)) is not None and process.parent and process.parent not in found:
        found.append(process.parent)
        pid = process.parent
    return tuple(found)


def sudo_above(pid: int) -> tuple[int, ...]:
    """The processes of sudo that only wait for this one, from its parent up."""
    return tuple(takewhile(lambda each: _name(each) == "sudo", ancestors_of(pid)))


def _name(pid: int) -> str:
    try:
        return os.fsdecode(process_file(pid, "comm")).rstrip("\n")
    except OSError:
        return ""


def heeds_sigterm(pid: int) -> bool:
    """Whether the process has a handler for SIGTERM, to end in its own way."""
    try:
        lines = os.fsdecode(process_file(pid, "status")).split("\n")
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def holders_of(lock: Path) -> list[int]:
    """The other processes that have the lock's file open and that this user may see. Root sees all."""
    found = []
    for pid in process_ids():
        # A process may end meanwhile, or belong to another user.
        with suppress(OSError):
            files = os.scandir(PROC / str(pid) / "fd") if pid != os.getpid() else ()
            if any(os.readlink(each) == str(lock.absolute()) for each in files):
                found.append(pid)
    return sorted(found)


def may_have_inherited(
    candidates: Iterable[Process], parent_of: Callable[[int], Process | None], *, uid: int, since: int
) -> tuple[Process, ...]:
    """The candidates that may have inherited a share of user `uid` from its command, which started at `since`.

    Processes that started earlier cannot have inherited it. Nor can those of other users, except through a setuid program, which
    this does not look for. An orphan of the share has a parent that is older than the share: init or a subreaper. Returns none
    for a command killed before its start was recorded (0).
    """
    if since == 0:
        return ()
    suspects: dict[int, Process] = {}
    for each in sorted(candidates, key=lambda process: process.started):
        if each.uid != uid or each.started < since:
            continue
        parent = parent_of(each.parent)
        # The first process of a PID namespace has no parent.
        if parent is not None and (parent.started < since or parent.pid in suspects):
            suspects[each.pid] = each
    return tuple(suspects.values())


def _look(allocation_id: str, uid: int, since: int, key_digest: str) -> FoundProcesses:
    mark = f"{MARK}={allocation_id}".encode()
    inherited: list[Process] = []
    unreadable: dict[int, Process] = {}
    for pid in process_ids():
        # A process may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            try:
                environment = process_environment(pid)
            except PermissionError:
                if pid != os.getpid() and (process := process_at(pid)) is not None:
                    unreadable[process.pid] = process
                continue
            named = process_at(pid) if mark in environment else None
            if named is not None and (named.uid in (0, uid) or knows_key(environment, key_digest)):
                inherited.append(named)
    inherited.sort(key=lambda process: process.started)
    hidden = may_have_inherited(
        unreadable.values(), lambda pid: unreadable.get(pid) or process_at(pid), uid=uid, since=since
    )
    return FoundProcesses(tuple(inherited), hidden)


def knows_key(environment: Iterable[bytes], key_digest: str) -> bool:
    """Whether a process with that environment knows the key with that digest; true if the share has no key, ""."""
    pairs = (os.fsdecode(each).partition("=") for each in environment)
    return not key_digest or any(name == KEY and digest_of(value) == key_digest for name, _, value in pairs)
