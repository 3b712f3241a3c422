"""What keeps the share of an ended command: processes that the command started and left running.

Looks for cheap evidence first: the share's lock, which children inherit; then the share's name in the environment of every
process. The process that ran the command also knows its orphans, even if they closed and overwrote everything, and so does the
share's control group, if it has one. A process that cannot be read does not count as gone.

The lock's file also says what the share is, for a new ledger: processes can hide their environment, but not their lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tranche.core.allocation import Allocation, Phase
from tranche.core.errors import TrancheError
from tranche.core.keeper import KeeperStatus, ProcessKeeper
from tranche.core.wire import (
    grant_from_dict,
    grant_to_dict,
    keeper_from_dict,
    keeper_to_dict,
    request_from_dict,
    request_to_dict,
)
from tranche.node.locks.locks import is_held
from tranche.node.processes.processes import NO_TRACES, FoundProcesses, Process, find_traces, holders_of, process_at
from tranche.node.state.session import StateFolder, pid_namespace
from tranche.node.state.state_file import open_state_file


class RemainingProcesses(NamedTuple):
    """What is left of a share's command. `locked`: some process holds the share's lock; `holders` are the visible ones.

    `orphans` descend from the command.
    """

    locked: bool = False
    holders: tuple[Process, ...] = ()
    traces: FoundProcesses = NO_TRACES
    orphans: tuple[Process, ...] = ()

    @property
    def life(self) -> KeeperStatus:
        """Whether anything is left. The share is free only when this is GONE."""
        if self.locked or self.orphans or self.traces.inherited:
            return KeeperStatus.ALIVE
        return KeeperStatus.UNKNOWN if self.traces.hidden else KeeperStatus.GONE

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes that keep or may keep the share, each once, the most certain first."""
        return _each_once(*self.certain, *self.traces.hidden)

    @property
    def certain(self) -> tuple[Process, ...]:
        """The processes that keep the share for certain."""
        return _each_once(*self.orphans, *self.holders, *self.traces.inherited)

    def without(self, pids: Collection[int]) -> RemainingProcesses:
        """The same without these processes, as far as only their environment is evidence."""
        kept = tuple(each for each in self.traces.inherited if each.pid not in pids)
        return self._replace(traces=self.traces._replace(inherited=kept))

    def keeper(self, before: ProcessKeeper) -> ProcessKeeper | None:
        """The next keeper of the share; None when no known process keeps or may keep it."""
        there = self.certain or self.traces.hidden
        if not there:
            return None
        first, *others = sorted(there, key=lambda process: process.started)
        return before._replace(
            pid=first.pid,
            started=first.started,
            namespace=pid_namespace(),
            others=tuple((each.pid, each.started) for each in others),
            suspected=not self.certain,
        )

    def __str__(self) -> str:
        if not self.processes:
            return "a process that only root can see"
        pids = ", ".join(str(each.pid) for each in self.processes)
        sure = bool(self.certain)
        return f"pid {pids}" if sure else f"pid {pids} (only root can read the environment)"


def remains_of(
    places: StateFolder, allocation_id: str, keeper: ProcessKeeper, orphans: Sequence[Process] = ()
) -> RemainingProcesses:
    """What is left of the command of a share with that keeper.

    `orphans` are the caller's children that the command left, oldest first.
    """
    lock = places.allocation(allocation_id)
    orphans = _each_once(*orphans, *_recorded(keeper), *_in_group(places.share_groups / allocation_id))
    if is_held(lock):
        seen = (process_at(pid) for pid in holders_of(lock))
        return RemainingProcesses(True, tuple(each for each in seen if each is not None), orphans=orphans)
    owner = lock if lock.exists() else places.ledger
    traces = find_traces(allocation_id, uid=os.stat(owner).st_uid, since=keeper.started, key_digest=keeper.key_digest)
    return RemainingProcesses(traces=traces, orphans=orphans)


def note_share(lock: Path, allocation: Allocation) -> None:
    """Write into the share's lock what it is. Without room, a new ledger finds it by its processes alone.

    A note is replaced in place, by one call, so that a kill or a full disk leaves the old one or the new one.
    """
    data = {
        "request": request_to_dict(allocation.request),
        "grants": [grant_to_dict(each) for each in allocation.grants],
        "command": allocation.command,
        "created": allocation.created,
        "keeper": keeper_to_dict(allocation.keeper),
    }
    with suppress(OSError), open(open_state_file(lock, os.O_WRONLY), "wb", buffering=0) as file:
        file.write(json.dumps(data).encode().ljust(os.fstat(file.fileno()).st_size))


def noted_shares(folder: Path) -> Iterator[Allocation]:
    """The shares of those locks in the folder that are held."""
    for lock in sorted(folder.iterdir()) if folder.is_dir() else ():
        if is_held(lock):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, TrancheError):
                data = json.loads(lock.read_text())
                yield _checked(
                    Allocation(
                        lock.name,
                        request_from_dict(data["request"]),
                        tuple(map(grant_from_dict, data["grants"])),
                        Phase.ACTIVE,
                        data["created"],
                        data["command"],
                        keeper_from_dict(data["keeper"]),
                    )
                )


def _checked(noted: Allocation) -> Allocation:
    """The same; raises ValueError or TypeError if the note is damaged."""
    keeper = noted.keeper
    if not isinstance(keeper, ProcessKeeper):
        raise ValueError("no process keeps it")
    numbers = noted.created, keeper.pid, keeper.started, keeper.namespace, keeper.uid, keeper.begun
    if not all(
        isinstance(each, int | float) for each in (*numbers, *(part for other in keeper.others for part in other))
    ):
        raise ValueError("a field has the wrong type")
    hash(noted.grants)
    noted.command.encode()
    return noted


def _recorded(keeper: ProcessKeeper) -> tuple[Process, ...]:
    """The living processes that the register names: the command, and what it left running, which the recorder knew by descent.

    This process may be one of them, such as the holder of a session's share, and then gives the share back itself.
    """
    if keeper.suspected or not keeper.pid or keeper.namespace not in (0, pid_namespace()):
        return ()
    named = {(keeper.pid, keeper.started), *keeper.others}
    found = (process_at(pid) for pid, _ in sorted(named, key=lambda each: each[1]))
    return tuple(
        each for each in found if each is not None and (each.pid, each.started) in named and each.pid != os.getpid()
    )


def _in_group(note: Path) -> tuple[Process, ...]:
    """The living processes in the share's control group, which no process leaves; none if the share has no group."""
    try:
        folder = Path(json.loads(note.read_text())["group"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    from tranche.hardware.control_groups import members  # most shares have no group

    return tuple(each for each in map(process_at, members(folder)) if each is not None)


def _each_once(*processes: Process) -> tuple[Process, ...]:
    return tuple({each.pid: each for each in processes}.values())
