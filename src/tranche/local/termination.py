"""Takes a share back from a living workload: asks it to end, insists after a while, then sees the share given back."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tranche.core.allocation import HELD, Allocation
from tranche.core.errors import AllocationUnknown, GpuBusy, LedgerUnavailable, PermissionDenied, UsageError
from tranche.core.keeper import Keeper, KeeperStatus, ProcessKeeper
from tranche.hardware.process_stat import process_stat
from tranche.local.queue import Queue
from tranche.node.host import Host
from tranche.node.locks.locks import is_held, lock_pids
from tranche.node.mps.mps_daemons import UndrainedDevice, drain
from tranche.node.processes.keeping import RemainingProcesses, remains_of
from tranche.node.processes.processes import MARK, ancestors_of, find_traces, heeds_sigterm, holders_of, sudo_above
from tranche.node.state.session import StateFolder, children_pids, process_stopped, sees_processes_of
from tranche.node.store import chronicle
from tranche.node.store.register import runs, user_name

_POLL_SECONDS = 0.02
_ASK_SECONDS = 0.2
"""Between questions to the service."""
_OWNER_SECONDS = 5.0
_ROUNDS, _ROUNDS_WITH_SIGTERM = 5, 2


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a share came back: `signal` is the strongest signal sent, 0 for none.

    `undrained` are the devices whose MPS servers did not release processes that were killed anyway.
    """

    pids: tuple[int, ...]
    signal: int
    undrained: tuple[UndrainedDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleasePreview:
    """What taking a share back would take now: `pids` have to end. `remains` is what is left of its command.

    `holder` is Tranche's own process that holds the share of a session, 0 if there is none.
    """

    allocation: Allocation
    keeper: ProcessKeeper
    pids: tuple[int, ...]
    remains: RemainingProcesses
    holder: int = 0

    def refuse_if_in_use(self) -> None:
        """GpuBusy while the share is in use, or may be in use unseen."""
        programs = [each for each in self.pids if each != self.holder]
        if programs or (not self.holder and self.remains.life is not KeeperStatus.GONE):
            raise _busy(self.allocation, programs, self.remains)


def taking_back(places: StateFolder, allocation: Allocation) -> ReleasePreview:
    """The preview; GpuBusy if no process on this machine decides on the share, or its processes cannot be seen from here."""
    keeper = allocation.keeper
    if not isinstance(keeper, ProcessKeeper):
        raise GpuBusy(
            f"allocation {allocation.id} is held by {keeper}",
            hint="end the allocation's pods in Kubernetes; the node's agent then releases the share",
        )
    if not sees_processes_of(keeper.namespace):
        raise GpuBusy(
            f"allocation {allocation.id} is held by processes in another PID namespace, which are not visible from here",
            hint="run the command on the machine itself, outside any container",
        )
    remains = remains_of(places, allocation.id, keeper)
    pids = living(keeper) or [each.pid for each in remains.certain]
    if allocation.command != HELD or pids[:1] != [keeper.pid] or keeper.started != keeper.begun:
        return ReleasePreview(allocation, keeper, tuple(pids), remains)
    programs = find_traces(allocation.id, uid=keeper.uid, since=keeper.started, key_digest=keeper.key_digest).inherited
    using = (each.pid for each in programs if each.pid not in _own())
    return ReleasePreview(allocation, keeper, tuple(dict.fromkeys((*pids, *using))), remains, keeper.pid)


def _own() -> frozenset[int]:
    """This process, and those of sudo that wait for it: none is a program of the session's share that it was started in."""
    return frozenset((os.getpid(), *sudo_above(os.getpid())))


def take_back(
    host: Host,
    allocation_id: str,
    *,
    terminate: bool,
    grace: float,
    why: str = "",
    confirm: Callable[[ReleasePreview], None] = lambda found: None,
) -> _Ended:
    """Give a share back; `why` is the reason in the event. If `terminate`, end a living workload by SIGTERM, and by SIGKILL after
    `grace` seconds. The holder of a session's share is always ended, unless a program uses the share.

    Raises GpuBusy if the share is in use and `terminate` is false, or if it may be in use unseen; AllocationUnknown if the id is
    unknown; PermissionDenied if the workload is another user's; UsageError if this process itself would be ended; and what
    `confirm` raises, which receives the preview before anything is done.
    """
    allocation = host.allocation(allocation_id)
    if allocation is None:
        raise AllocationUnknown(
            f"no allocation or waiting request {allocation_id}",
            hint="list allocations and requests with: tranche ps",
        )
    if allocation.command == HELD:
        _leave_share()
    found = taking_back(host.places, allocation)
    confirm(found)
    if not terminate:
        found.refuse_if_in_use()
    pids, remains, keeper = list(found.pids), found.remains, found.keeper
    _refuse_own_end(allocation, {*pids, *(each.pid for each in remains.certain)})
    own = _own() if found.holder else frozenset()

    def look() -> RemainingProcesses:
        return remains_of(host.places, allocation_id, keeper).without(own)

    ended: list[int] = []
    undrained: dict[str, UndrainedDevice] = {}
    last = 0
    begun = False

    def ending(doomed: set[int]) -> None:
        nonlocal begun
        if not begun:
            begun = True
            # A user who may end the processes but not write the ledger still ends them.
            with suppress(LedgerUnavailable, PermissionDenied), host.ledger.write() as db:
                chronicle.release_begun(db, host.clock(), allocation_id, pids, host.actor)
        undrained.update({each.device_uuid: each for each in drain(host.daemons, allocation, doomed)})

    if terminate:
        # A `tranche run` that is stopped would not see its command end, and so not give the share back.
        continue_stopped(host.places.allocation(allocation_id), keeper, pids)
    # What the workload started may outlive it, keeps the share as long as it lives, and may start more meanwhile.
    for number in range(_ROUNDS if terminate else 1):
        if not pids and not remains.locked:
            break
        # What starts more when it is asked to end would double in each round.
        sent = end_processes(pids, grace if number < _ROUNDS_WITH_SIGTERM else 0.0, ending)
        last = last if last == signal.SIGKILL else sent or last
        ended += pids
        _await_owner(host, allocation_id)
        remains = look()
        # `tranche run` may know an orphan by descent, and has registered it.
        pids = list(dict.fromkeys([*(each.pid for each in remains.certain), *_living_now(host, allocation_id)]))
        pids = [each for each in pids if each not in own]
        if not pids:
            break
    # A process that is just ending may be unreadable. `tranche run` knows what is left of its command, and gives the share back
    # if nothing is.
    deadline = time.monotonic() + (_OWNER_SECONDS if ended and not pids else 0.0)
    while remains.life is not KeeperStatus.GONE and host.allocation(allocation_id) is not None:
        if time.monotonic() >= deadline:
            raise _busy(allocation, pids, remains)
        time.sleep(_ASK_SECONDS if host.ledger.read_only else _POLL_SECONDS)
        remains = look()
    # `tranche run` may have given the share back itself after its workload ended.
    with suppress(AllocationUnknown):
        released = "released with tranche release" if host.actor is None else "released"
        Queue(host).release(allocation_id, why=why or released)
    return _Ended(tuple(dict.fromkeys(ended)), last, tuple(undrained.values()))


def _leave_share() -> None:
    """Overwrite the share's name in this process's environment, as others see it: it was started in a session with that share."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    if place := libc.getenv(MARK.encode()):
        ctypes.memset(place, ord("-"), len(os.environb[MARK.encode()]))


def _living_now(host: Host, allocation_id: str) -> list[int]:
    """The living processes that the register names for the allocation now."""
    found = host.allocation(allocation_id)
    return living(found.keeper) if found is not None and isinstance(found.keeper, ProcessKeeper) else []


def living(keeper: ProcessKeeper) -> list[int]:
    """The living processes of a keeper, if they are known to descend from the share's command."""
    if keeper.suspected:
        return []
    named = ((keeper.pid, keeper.started), *keeper.others)
    return [pid for pid, started in named if runs(keeper._replace(pid=pid, started=started))]


def _refuse_own_end(allocation: Allocation, pids: Collection[int]) -> None:
    """UsageError if this process is among those to be ended, or descends from one."""
    if {os.getpid(), *ancestors_of(os.getpid())} & set(pids):
        raise UsageError(
            f"this process is running inside share {allocation.id}: ending the share would end this command too",
            hint="run it outside the share, or end the share's command, which releases the share",
        )


def cancel_waiter(host: Host, waiter_id: str) -> int | None:
    """Remove the request from the queue and return its command's pid; None if no request with that id waits.

    SIGTERM ends its command. A command that is stopped, or another user's, finds out when it continues. A user who may not write
    the ledger only sends the signal; PermissionDenied if the command is another user's.
    """
    waiter = next((each for each in host.waiters() if each.id == waiter_id), None)
    if waiter is not None and host.ledger.read_only and lock_pids(host.places.waiter(waiter_id)):
        _signal(waiter.pid, signal.SIGTERM)
        return waiter.pid
    if waiter is None or not host.cancel(waiter_id):
        return None
    if is_held(host.places.waiter(waiter_id)):
        with suppress(PermissionDenied):
            _signal(waiter.pid, signal.SIGTERM)
    Queue(host).ring_next()
    return waiter.pid


def _busy(allocation: Allocation, pids: Sequence[int], remains: RemainingProcesses) -> GpuBusy:
    what = f"allocation {allocation.id} ({allocation.request})"
    command = f": {allocation.command}" if allocation.command != HELD else ""
    if pids:
        hint = f"end it and release the share with: tranche release {allocation.id} --terminate"
        uid = allocation.keeper.uid if isinstance(allocation.keeper, ProcessKeeper) else -1
        if uid >= 0 and os.geteuid() not in (0, uid):
            hint = f"the share belongs to {user_name(uid)}: only {user_name(uid)} and root can end it"
        return GpuBusy(f"{what} is in use by pid {', '.join(map(str, pids))}{command}", hint=hint)
    hint = "check on the machine itself, outside any container"
    hint = hint if os.geteuid() == 0 else "run the command as root"
    if remains.traces.hidden:
        return GpuBusy(f"{what} may be in use by {remains}{command}", hint=hint)
    if process_stopped(runner := _parent_of_ended(allocation.keeper)):
        text = f"the command of {what} has ended, but its tranche run, pid {runner}, is stopped{command}"
        return GpuBusy(text, hint=f"continue it with: kill -CONT {runner}")
    return GpuBusy(f"{what} is in use by a process that is not visible from here{command}", hint=hint)


def end_processes(pids: Sequence[int], grace: float, drained: Callable[[set[int]], object]) -> int:
    """End the processes, without SIGTERM if they have no `grace`; returns the last signal sent, 0 if none is alive.

    Before each signal, `drained` receives the processes that the signal kills outright. Raises PermissionDenied, before anything
    is done, if one of them may not be ended.
    """
    with ExitStack() as stack:
        watched: list[tuple[int, int]] = []
        for pid in pids:
            # A process that ended before it could be watched needs no signal.
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                watched.append((pid, descriptor))
        if not watched:
            return 0
        for pid, _ in watched:
            _signal(pid, 0)
        drained({pid for pid, _ in watched if not heeds_sigterm(pid)})
        for pid, _ in watched:
            if grace:  # what is asked to end may start more
                _signal(pid, signal.SIGTERM)
                _continue(pid)  # what is stopped heeds no signal
        deadline = time.monotonic() + grace
        stubborn = [(pid, each) for pid, each in watched if not _ended(each, max(0.0, deadline - time.monotonic()))]
        drained({pid for pid, _ in stubborn})
        for pid, _ in stubborn:
            _signal(pid, signal.SIGKILL)
        for _, each in stubborn:
            _ended(each, None)
        return signal.SIGKILL if stubborn else signal.SIGTERM


def _ended(watched: int, seconds: float | None) -> bool:
    """Sleep until the process of the pidfd has ended; False if the time ran out first."""
    ready, _, _ = select.select([watched], [], [], seconds)
    return bool(ready)


def _signal(pid: int, number: int) -> None:
    """Send the signal; 0 only asks for permission."""
    try:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    except PermissionError as error:
        raise PermissionDenied(
            f"no permission to terminate pid {pid}", hint="run the command with sudo, or as the user who started it"
        ) from error


def _continue(pid: int) -> None:
    if process_stopped(pid):
        _signal(pid, signal.SIGCONT)


def continue_stopped(lock: Path, keeper: Keeper, pids: Iterable[int]) -> list[int]:
    """Continue what is stopped of a share: holders of its lock, the keeper's `pids`, and all that these have started.

    Returns what was stopped. A command may wait until what it has started has saved. Of what its `tranche run` has started, only
    the command belongs to the share: a shell may have started others before it became `tranche run`.
    """
    runs = {_parent_of_ended(keeper), *(each for pid in pids for each in ancestors_of(pid)[:1])}
    found = {*holders_of(lock), *pids, *runs}
    below = [pid for pid in found if pid not in runs]
    while below:
        below = [child for pid in below for child in children_pids(pid) if child not in found]
        found.update(below)
    stopped = sorted(filter(process_stopped, found))
    for pid in stopped:
        with suppress(PermissionDenied):
            _signal(pid, signal.SIGCONT)
    return stopped


def _parent_of_ended(keeper: Keeper) -> int:
    """The process that has yet to notice that the keeper's command has ended; 0 if there is none."""
    if not isinstance(keeper, ProcessKeeper) or not keeper.pid:
        return 0
    stat = process_stat(keeper.pid)
    return stat.parent if stat is not None and stat.started == keeper.started and not stat.lives else 0


def _await_owner(host: Host, allocation_id: str) -> None:
    """Let the `tranche run` above the workload give the share back itself, so that it can return the exit code.

    A user of the service may not open the share's lock. The service frees the share, or names what is left of its command.
    """
    lock, asks = host.places.allocation(allocation_id), host.ledger.read_only
    deadline = time.monotonic() + _OWNER_SECONDS
    while is_held(lock) and time.monotonic() < deadline:
        if asks and (host.allocation(allocation_id) is None or _living_now(host, allocation_id)):
            return
        time.sleep(_ASK_SECONDS if asks else _POLL_SECONDS)
