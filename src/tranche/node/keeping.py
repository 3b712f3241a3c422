"""Who keeps a share whose command has ended: whatever the command started and left running.

Evidence is looked for in the order of its price: the share's lock, which children inherit; then the share's name in the
environment of every process. Whoever ran the command knows its orphans besides, whatever they closed and overwrote. What cannot
be looked at is not taken for gone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tranche.core.keeper import Life, ProcessEvidence, ProcessKeeper, judge_process
from tranche.node.locks import is_held
from tranche.node.processes import NO_TRACES, Process, Traces, find_traces, holders_of, process_at
from tranche.node.session import Places


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of a share's command. `locked`: somebody holds the share's lock; `holders` are those of them that are seen.

    `orphans` came of the command by descent.
    """

    locked: bool = False
    holders: tuple[Process, ...] = ()
    traces: Traces = NO_TRACES
    orphans: tuple[Process, ...] = ()

    @property
    def life(self) -> Life:
        """Whether anything is left: the share is free only when that is GONE."""
        inherited, hidden = (*self.orphans, *self.traces.inherited), self.traces.hidden
        return judge_process(
            ProcessEvidence(
                self.locked, inherited=[each.pid for each in inherited], hidden=[each.pid for each in hidden]
            )
        )

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes that keep the share or may, each once, the surest first."""
        return _each_once(*self.certain, *self.traces.hidden)

    @property
    def certain(self) -> tuple[Process, ...]:
        """The processes that keep the share for certain."""
        return _each_once(*self.orphans, *self.holders, *self.traces.inherited)

    @property
    def heir(self) -> Process | None:
        """The process that has the share now; None when none is known for certain."""
        return next(iter(self.certain), None)

    def __str__(self) -> str:
        if not self.processes:
            return "a process that only root can see"
        pids = ", ".join(str(each.pid) for each in self.processes)
        sure = self.heir is not None
        return f"pid {pids}" if sure else f"pid {pids}, whose environment only root can read"


def remains_of(places: Places, allocation_id: str, keeper: ProcessKeeper, orphans: Sequence[Process] = ()) -> Remains:
    """What is left of the command of a share that has that keeper.

    `orphans` are the caller's children that came of it, oldest first.
    """
    lock = places.allocation(allocation_id)
    if is_held(lock):
        seen = (process_at(pid) for pid in holders_of(lock))
        return Remains(True, tuple(each for each in seen if each is not None), orphans=tuple(orphans))
    owner = lock if lock.exists() else places.ledger
    traces = find_traces(allocation_id, uid=os.stat(owner).st_uid, since=keeper.started, key_digest=keeper.key_digest)
    return Remains(traces=traces, orphans=tuple(orphans))


def _each_once(*processes: Process) -> tuple[Process, ...]:
    return tuple({each.pid: each for each in processes}.values())
