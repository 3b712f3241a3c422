"""The time limit of a share: warnings, more time on request, then the end of the command and of what it started.

A command that is preempted ends in the same way: its limit in the ledger then is the time for which it has run.

Time counts on a clock that nobody can set, and that runs while the machine is suspended. The ledger has the limit, so an
administrator can extend it while the command runs.

The process that runs the command, or the service's for it, ends it. If that process is gone or stopped, or if the command ended
and left processes, the service or the next waiting request does so a little later.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from tranche.core.allocation import HELD, Allocation, NodeView
from tranche.core.errors import (
    AllocationUnknown,
    GpuBusy,
    LedgerUnavailable,
    NoRoom,
    PermissionDenied,
    TrancheError,
    UsageError,
)
from tranche.core.keeper import ProcessKeeper
from tranche.core.quantity import format_duration
from tranche.hardware.nvml_instances import process_name
from tranche.local.termination import continue_stopped, end_processes, living, take_back
from tranche.local.wakeup_pipe import as_asked
from tranche.local.workload import Workload
from tranche.node.host import Host
from tranche.node.locks.locks import is_held
from tranche.node.mps.mps_daemons import drain
from tranche.node.processes.keeping import note_share
from tranche.node.processes.processes import find_traces, holders_of
from tranche.node.state.session import boot_clock, process_stopped, sees_processes_of
from tranche.node.store import chronicle, register
from tranche.node.store.ledger import Ledger
from tranche.planning.decide.queue import reserved_for
from tranche.planning.decide.quota import refuse_too_long
from tranche.planning.decide.reservations import closing
from tranche.planning.decide.time_limits import GRACE_SECONDS, free_by

WARNINGS_SECONDS = (600.0, 60.0)
_LONGEST_SLEEP_SECONDS = 60.0
_HEEDS_PREEMPTION_SECONDS = 1.0
_NAMED_AT_MOST = 4
_POLL_SECONDS = 0.1


class TimeLimit:
    """The limit of one share, from now on. `warn` receives sentences for the user, from another thread.

    Without a limit, it can only end an idle hold.
    """

    def __init__(
        self,
        host: Host,
        allocation: Allocation,
        workload: Workload,
        warn: Callable[[str], None],
        *,
        warnings: Sequence[float] = WARNINGS_SECONDS,
        grace: float = GRACE_SECONDS,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self.why = ""
        """Why the command was told to end, in words; "" before."""
        self._ending = threading.RLock()
        self._host, self._allocation, self._workload = host, allocation, workload
        self._warn, self._warnings, self._grace, self._clock = warn, warnings, grace, clock
        limit = allocation.request.time_limit
        self._seconds = math.inf if limit is None else limit
        self._began = clock()
        self._grace_left = grace
        self._cleared = False
        self._needed = False
        self.preempted = False
        """Whether the command was told to end because another request needs its share, and had not ended by itself."""

    @property
    def over(self) -> bool:
        """Whether the command was told to end."""
        return bool(self.why)

    def enforce(self, stop: int) -> None:
        """Warn, and end the command in time. Returns when that is done, or when the descriptor `stop` is readable."""
        poll = select.poll()
        poll.register(stop, select.POLLIN)
        longest = _HEEDS_PREEMPTION_SECONDS if self._allocation.request.preemptible else _LONGEST_SLEEP_SECONDS
        left = self._left()
        while True:
            until = max((each for each in (*self._warnings, 0.0) if each < left), default=0.0)
            if poll.poll(max(0.0, min(left - until, longest)) * 1000):
                return
            # Asked once for each turn: a time that passed between two questions would go without its warning.
            left = self._left()
            if self._needed:
                self._end(poll)
                return
            if left > until:
                continue  # the limit was extended, or the sleep was only a part
            if until:
                what = f"hold{self.programs()}" if self._allocation.command == HELD else "command"
                self._warn(
                    f"{format_duration(round(until))} left: Tranche will end this {what} "
                    f"at the time limit of {format_duration(int(self._seconds))}"
                )
            else:
                self._end(poll)
                return

    def end_orphans(self) -> None:
        """When the time is over and the command has ended, end what the command left."""
        with self._ending:  # an idle hold may be ending still
            until = self._clock() + self._grace
        while self.over and self._clock() < until and (orphans := self._workload.orphans()):
            if not self._end_processes([each.pid for each in orphans]):
                return

    def _left(self) -> float:
        """The seconds left, by the limit that the ledger has now, or had when it was last readable."""
        with suppress(TrancheError):
            found = self._as_registered()
            if found is not None and found.request.time_limit is not None:
                # Nobody shortens a time limit but for a request that needs the share.
                self._needed |= found.request.preemptible and found.request.time_limit < self._seconds
                self._seconds = found.request.time_limit
        return self._began + self._seconds - self._clock()

    def _end(self, stop: select.poll) -> None:
        """End the command, which may not have started yet, and go on until nothing of it is left."""
        why = "its time limit had passed", f"the time limit of {format_duration(int(self._seconds))} has passed"
        if self._needed:
            why = "another request needed its GPU", "another request needs this GPU"
        if not self._begin_to_end(*why):
            return
        while True:
            if pids := self._command_and_its_processes():
                self.preempted = self._needed
                self._cleared = self._end_processes(pids)
                if not self._cleared or self._allocation.command == HELD:
                    return  # what the shell of a hold starts later is no program of the share
            elif stop.poll(_POLL_SECONDS * 1000):
                return

    def end_idle(self, why: str) -> None:
        """End a hold that is idle, with its programs, as at its time limit; `why` in words."""
        with self._ending:
            if self._begin_to_end(why, "this hold is idle") and (pids := self._command_and_its_processes()):
                self._cleared = self._end_processes(pids)

    def _begin_to_end(self, why: str, said: str) -> bool:
        """Say what happens now; False if the command was told to end before."""
        with self._ending:
            if self.over:
                return False
            self.why = why
        self._warn(f"{said}: Tranche sends SIGTERM to this command, and SIGKILL after {self._grace:g} s")
        return True

    def programs(self) -> str:
        """The programs that end with a hold, such as editors and shells: ` along with vim (pid 4711)`. "" if there are none."""
        holders: tuple[int, ...] = ()
        with suppress(TrancheError):
            found = self._host.allocation(self._allocation.id)
            if found is not None and isinstance(found.keeper, ProcessKeeper):
                holders = (found.keeper.pid,)
        pids = [pid for pid in self._command_and_its_processes() if pid not in holders]
        named = [f"{process_name(pid) or 'a program'} (pid {pid})" for pid in pids[:_NAMED_AT_MOST]]
        more = f" and {len(pids) - _NAMED_AT_MOST} more" if len(pids) > _NAMED_AT_MOST else ""
        return f" along with {', '.join(named)}{more}" if named else ""

    def _as_registered(self) -> Allocation | None:
        """The share as the register has it now; None if it was given back.

        If the open ledger was lost, that is the share in the new one, or as it was given until the new one knows it.
        """
        try:
            return self._host.allocation(self._allocation.id)
        except LedgerUnavailable:
            with suppress(TrancheError), Ledger(self._host.places.ledger, read_only=True).read() as db:
                there = (each for each in register.allocations(db) if each.id == self._allocation.id)
                return next(there, self._allocation)
            return self._allocation

    def _command_and_its_processes(self) -> list[int]:
        try:
            found = self._as_registered()
        except TrancheError:
            found = None
        pids = [] if found is None else own_processes(self._host, found)
        return [pid for pid in pids if pid not in (os.getpid(), self._workload.pid)]

    def ended_hold(self) -> bool:
        """Whether this ended all programs of a hold, and none that its shell has started since is on the share's GPUs."""
        hold = self.over and self._cleared and self._allocation.command == HELD
        return hold and not _on_gpus(self._host, self._allocation)

    def _end_processes(self, pids: Sequence[int]) -> bool:
        """Whether they could be ended. Only the first get SIGTERM, because what is asked to end may start more."""
        grace, self._grace_left = self._grace_left, 0.0
        try:
            end_processes(pids, grace, lambda doomed: drain(self._host.daemons, self._allocation, doomed))
        except (TrancheError, OSError) as error:
            self._warn(f"cannot end the command at its time limit: {error}")
            return False
        return True


def own_processes(host: Host, allocation: Allocation) -> list[int]:
    """The command, what has its lock, and what has the share's variables."""
    keeper, lock = allocation.keeper, host.places.allocation(allocation.id)
    if not isinstance(keeper, ProcessKeeper):
        return []
    pids = [*living(keeper), *holders_of(lock)]
    with suppress(OSError):
        uid = os.stat(lock).st_uid
        traces = find_traces(allocation.id, uid=uid, since=keeper.started, key_digest=keeper.key_digest)
        pids += [each.pid for each in traces.inherited]
    return list(dict.fromkeys(pids))


def _on_gpus(host: Host, allocation: Allocation) -> bool:
    """Whether a process of the share is on one of its GPUs, or a GPU does not tell."""
    pids = set(own_processes(host, allocation))
    try:
        gpus = [host.observe_gpu(each.gpu_uuid) for each in allocation.grants]
    except TrancheError:
        return True
    return any(gpu.lost or pids & {each.pid for each in gpu.all_processes} for gpu in gpus)


_STARTS_WITHIN_SECONDS = 60.0
_OVERDUE_SECONDS = GRACE_SECONDS + 5.0
_LAST_GRACE_SECONDS = 5.0
_WAKES_WITHIN_SECONDS = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")


def overdue(allocations: Iterable[Allocation], now: float, wall: float) -> list[Allocation]:
    """The shares of commands that should have ended by `now`, which is that of `boot_clock`; `wall` is since the epoch.

    The process that should end them was killed, or is stopped; or the command has ended, and left processes.
    """
    return [each for each in allocations if _is_overdue(each, now, wall)]


def _is_overdue(allocation: Allocation, now: float, wall: float) -> bool:
    keeper, limit = allocation.keeper, allocation.request.time_limit
    if limit is None or not isinstance(keeper, ProcessKeeper):
        return False
    if not keeper.begun:
        return not keeper.pid and wall >= allocation.created + _STARTS_WITHIN_SECONDS + limit + _OVERDUE_SECONDS
    return sees_processes_of(keeper.namespace) and now >= keeper.begun / _TICKS + limit + _OVERDUE_SECONDS


def end_overdue(host: Host, clock: Callable[[], float] = boot_clock, grace: float = _LAST_GRACE_SECONDS) -> None:
    """End the commands that are overdue, and give their shares back. A failure leaves that to the next call.

    SIGKILL comes `grace` seconds after SIGTERM.
    """
    with suppress(TrancheError):
        for each in _overdue_now(host, clock()):
            _end_overdue(host, each, grace)


def _overdue_now(host: Host, now: float) -> list[Allocation]:
    with host.ledger.read() as db:
        return overdue(register.allocations(db), now, host.clock())


def _end_overdue(host: Host, allocation: Allocation, grace: float) -> None:
    why = (
        "it was preempted, or its time limit had passed"
        if allocation.request.preemptible
        else "its time limit had passed"
    )
    lock = host.places.allocation(allocation.id)
    if isinstance(allocation.keeper, ProcessKeeper) and not allocation.keeper.begun:
        # `tranche run` itself would start its command now; nothing runs in the share yet.
        for pid in filter(process_stopped, holders_of(lock)):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return
    # `tranche run` may be among them: it ends its command itself, and returns the exit code.
    keeper = allocation.keeper
    stopped = continue_stopped(lock, keeper, living(keeper) if isinstance(keeper, ProcessKeeper) else ())
    until = time.monotonic() + (_WAKES_WITHIN_SECONDS if stopped else 0.0)
    while is_held(lock) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    for seconds in (grace, 0.0):
        try:
            take_back(host, allocation.id, terminate=True, grace=seconds, why=why)
        except AllocationUnknown:
            return
        except GpuBusy:
            continue
        return
    if allocation.command == HELD and not _on_gpus(host, allocation):  # its shell goes on, with the share's variables
        with suppress(AllocationUnknown):
            host.release(allocation.id, why=why)


_PATIENCE_SECONDS = 30.0


def extend(host: Host, allocation_id: str, seconds: int, uid: int) -> str:
    """Add the seconds to the time limit of a running command, for user `uid`; returns the result in words.

    Raises AllocationUnknown; UsageError if there is no time limit, or its time is over; PermissionDenied if it is another user's;
    NoRoom if a request waits for one of its GPUs, or one is reserved by then. Root may extend every command, whoever waits.
    """
    with host.deciding(_PATIENCE_SECONDS) as (view, queue):
        found = next((each for each in view.allocations if each.id == allocation_id), None)
        if any(each.id == allocation_id for each in queue):
            raise UsageError(
                f"request {allocation_id} is still waiting, so its time has not begun",
                hint="extend it once it has started",
            )
        if found is None:
            raise AllocationUnknown(f"no allocation {allocation_id}", hint="list the allocations with: tranche ps")
        before = found.request.time_limit
        if uid and not (isinstance(found.keeper, ProcessKeeper) and found.keeper.uid == uid):
            raise PermissionDenied(
                f"allocation {found.id} belongs to another user", hint="ask its owner or an administrator"
            )
        if before is None:
            raise UsageError(f"allocation {found.id} has no time limit", hint="it lasts until its command ends")
        if host.clock() >= found.created + before:
            if found.request.preemptible:
                raise UsageError(
                    f"the command of allocation {found.id} is ending: it is being preempted, or has reached its time limit",
                    hint="after a preemption, it starts again by itself",
                )
            raise UsageError(
                f"allocation {found.id} has reached its time limit", hint="run the command again with a longer --time"
            )
        waiters = as_asked(host.places, queue, host.clock())
        reserved = reserved_for(view, waiters)
        waiting = next((reserved[each.gpu_uuid] for each in found.grants if each.gpu_uuid in reserved), None)
        if uid and waiting is not None:
            raise NoRoom(
                f"request {waiting} is waiting for a GPU of allocation {found.id}",
                hint="ask an administrator to extend it",
            )
        after = before + seconds
        longer = found._replace(request=replace(found.request, time_limit=after))
        if uid:
            refuse_too_long(replace(view, asker=uid), longer.request)
            _refuse_reserved(replace(view, asker=uid), longer)
        with host.ledger.write() as db:
            register.set_request(db, found.id, longer.request)
            chronicle.time_extended(db, host.clock(), found.id, after)
        note_share(host.places.allocation(found.id), longer)
    return f"{found.id}: the time limit is now {format_duration(after)}; it was {format_duration(before)}"


def _refuse_reserved(view: NodeView, longer: Allocation) -> None:
    for grant in longer.grants:
        if (found := closing(view, grant.gpu_uuid, free_by(longer))) is not None:
            raise NoRoom(
                f"{view.node.gpu(grant.gpu_uuid).label} is {found}",
                hint="extend it by less time, or ask an administrator to extend it",
            )
