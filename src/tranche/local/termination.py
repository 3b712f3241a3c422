"""Taking a share back from a workload that lives: ask it to end, insist after a while, then see the share given back."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tranche.core.allocation import Allocation
from tranche.core.errors import AllocationUnknown, GpuBusy, LedgerUnavailable, PermissionDenied, UsageError
from tranche.core.keeper import KeeperStatus, ProcessKeeper
from tranche.local.queue import Queue
from tranche.node.host import Host
from tranche.node.locks.locks import is_held
from tranche.node.mps.mps_daemons import UndrainedDevice, drain
from tranche.node.processes.keeping import RemainingProcesses, remains_of
from tranche.node.processes.processes import ancestors_of, heeds_sigterm
from tranche.node.state.session import StateFolder, sees_processes_of
from tranche.node.store import chronicle, register
from tranche.node.store.register import runs

_POLL_SECONDS = 0.02
_OWNER_SECONDS = 5.0
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a share came back: `signal` is the last signal that was sent, 0 for none.

    `undrained` are the devices whose MPS servers did not let go of processes that were killed all the same.
    """

    allocation_id: str
    pids: tuple[int, ...]
    signal: int
    undrained: tuple[UndrainedDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleasePreview:
    """What it would take now to have a share back: `pids` have to end. `remains` is what is left of its command."""

    allocation: Allocation
    keeper: ProcessKeeper
    pids: tuple[int, ...]
    remains: RemainingProcesses

    def refuse_if_in_use(self) -> None:
        """GpuBusy while somebody holds the share, or may hold it unseen."""
        if self.pids or self.remains.life is not KeeperStatus.GONE:
            raise _busy(self.allocation, self.pids, self.remains)


def taking_back(places: StateFolder, allocation: Allocation) -> ReleasePreview:
    """What it would take; GpuBusy where processes on this machine do not decide on it, or cannot be seen from here."""
    keeper = allocation.keeper
    if not isinstance(keeper, ProcessKeeper):
        raise GpuBusy(
            f"allocation {allocation.id} is held by {keeper}",
            hint="end it there: the node's agent then takes the share back by itself",
        )
    if not sees_processes_of(keeper.namespace):
        raise GpuBusy(
            f"allocation {allocation.id} is held by processes of another PID namespace, which cannot be seen from here",
            hint="run the command where they can be seen: on the machine itself, outside of any container",
        )
    remains = remains_of(places, allocation.id, keeper)
    pids = _living(keeper) or [each.pid for each in remains.certain]
    return ReleasePreview(allocation, keeper, tuple(pids), remains)


def take_back(
    host: Host,
    allocation_id: str,
    *,
    terminate: bool,
    grace: float,
    confirm: Callable[[ReleasePreview], None] = lambda found: None,
) -> _Ended:
    """Give a share back; a workload that lives is sent SIGTERM, then SIGKILL after `grace` seconds, when `terminate` says so.

    Raises GpuBusy while somebody holds the share without `terminate`, or may hold it unseen; AllocationUnknown when there is none
    of that id; PermissionDenied when the workload is another user's; UsageError when this process itself would be ended; and
    what `confirm` raises, which is told what it would take before anything is done.
    """
    with host.ledger.read() as db:
        allocation = next((each for each in register.allocations(db) if each.id == allocation_id), None)
    if allocation is None:
        raise AllocationUnknown(
            f"there is no allocation and no waiting request {allocation_id}",
            hint="list them with: tranche ps",
        )
    found = taking_back(host.places, allocation)
    confirm(found)
    if not terminate:
        found.refuse_if_in_use()
    pids, remains, keeper = list(found.pids), found.remains, found.keeper
    lock = host.places.allocation(allocation_id)
    _refuse_own_end(allocation, {*pids, *(each.pid for each in remains.certain)})
    ended: list[int] = []
    undrained: dict[str, UndrainedDevice] = {}
    last = 0
    begun = False

    def ending(doomed: set[int]) -> None:
        nonlocal begun
        if not begun:
            begun = True
            # Who may end the processes and not write the ledger ends them all the same.
            with suppress(LedgerUnavailable, PermissionDenied), host.ledger.write() as db:
                chronicle.release_begun(db, host.holders.clock(), allocation_id, pids, host.actor)
        undrained.update({each.device_uuid: each for each in drain(host.daemons, allocation, doomed)})

    # What the workload started may outlive it, and keeps the share for as long as it lives; it may start more meanwhile.
    for _ in range(_ROUNDS):
        if not pids and not remains.locked:
            break
        last = _end_all(pids, grace, ending) or last
        ended += pids
        _await_owner(lock)
        remains = remains_of(host.places, allocation_id, keeper)
        # Its `tranche run` may know an orphan by descent, and has written it down.
        pids = list(dict.fromkeys([*(each.pid for each in remains.certain), *_living_now(host, allocation_id)]))
        if not pids:
            break
    # A process that is just ending may not be looked into. `tranche run` knows what came of its command, and gives the share
    # back where nothing of that is left.
    deadline = time.monotonic() + (_OWNER_SECONDS if ended and not pids else 0.0)
    while remains.life is not KeeperStatus.GONE and _registered(host, allocation_id):
        if time.monotonic() >= deadline:
            raise _busy(allocation, pids, remains)
        time.sleep(_POLL_SECONDS)
        remains = remains_of(host.places, allocation_id, keeper)
    # `tranche run` may have given the share back itself, when it saw its workload end.
    with suppress(AllocationUnknown):
        why = "taken back with tranche release" if host.actor is None else "taken back"
        Queue(host).release(allocation_id, why=why)
    return _Ended(allocation_id, tuple(dict.fromkeys(ended)), last, tuple(undrained.values()))


def _registered(host: Host, allocation_id: str) -> bool:
    with host.ledger.read() as db:
        return any(each.id == allocation_id for each in register.allocations(db))


def _living_now(host: Host, allocation_id: str) -> list[int]:
    """The living processes that the register names for the allocation now."""
    with host.ledger.read() as db:
        keepers = [each.keeper for each in register.allocations(db) if each.id == allocation_id]
    return [pid for keeper in keepers if isinstance(keeper, ProcessKeeper) for pid in _living(keeper)]


def _living(keeper: ProcessKeeper) -> list[int]:
    """The living processes of a keeper, when they are known to have come of the share's command."""
    if keeper.suspected:
        return []
    named = ((keeper.pid, keeper.started), *keeper.others)
    return [pid for pid, started in named if runs(replace(keeper, pid=pid, started=started))]


def _refuse_own_end(allocation: Allocation, pids: Collection[int]) -> None:
    """UsageError when this process is among those that would be ended, or came of one."""
    if {os.getpid(), *ancestors_of(os.getpid())} & set(pids):
        raise UsageError(
            f"this process is inside share {allocation.id} itself: to end what runs there would end this command too",
            hint="run it outside of the share; or end the share's command, and the share comes back by itself",
        )


def cancel_waiter(host: Host, waiter_id: str) -> int | None:
    """Take the request out of the queue and return its command's pid; None when no request of that id waits.

    Its command is ended with SIGTERM. One that is stopped, or another user's, finds out itself when it goes on.
    """
    waiter = next((each for each in host.waiters() if each.id == waiter_id), None)
    if waiter is None or not host.cancel(waiter_id):
        return None
    if is_held(host.places.waiter(waiter_id)):
        with suppress(PermissionDenied):
            _signal(waiter.pid, signal.SIGTERM)
    Queue(host).ring_next()
    return waiter.pid


def _busy(allocation: Allocation, pids: Sequence[int], remains: RemainingProcesses) -> GpuBusy:
    what, command = f"allocation {allocation.id} ({allocation.request})", allocation.command
    if pids:
        return GpuBusy(
            f"{what} is in use by pid {', '.join(map(str, pids))}: {command}",
            hint=f"end it and take the share back with: tranche release {allocation.id} --terminate",
        )
    hint = "look where it can be seen: on the machine itself, outside of any container"
    hint = hint if os.geteuid() == 0 else "run the command as root"
    if remains.traces.hidden:
        return GpuBusy(f"{what} may be in use by {remains}: {command}", hint=hint)
    return GpuBusy(f"{what} is in use by a process that cannot be seen from here: {command}", hint=hint)


def _end_all(pids: Sequence[int], grace: float, drained: Callable[[set[int]], object]) -> int:
    """End the processes; the last signal that was sent, 0 when none lives.

    `drained` is told of the processes that the next signal kills outright, before it is sent. PermissionDenied before anything
    is done, where one of them may not be ended.
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
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        stubborn = [(pid, each) for pid, each in watched if not _ended(each, max(0.0, deadline - time.monotonic()))]
        drained({pid for pid, _ in stubborn})
        for pid, _ in stubborn:
            _signal(pid, signal.SIGKILL)
        for _, each in stubborn:
            _ended(each, None)
        return signal.SIGKILL if stubborn else signal.SIGTERM


def _ended(watched: int, seconds: float | None) -> bool:
    """Sleep until the process of the pidfd has ended; False when the time was over first."""
    ready, _, _ = select.select([watched], [], [], seconds)
    return bool(ready)


def _signal(pid: int, number: int) -> None:
    """Send the signal; 0 only asks whether one may be sent."""
    try:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    except PermissionError as error:
        raise PermissionDenied(
            f"no permission to end pid {pid}", hint="run the command with sudo, or as the user who started it"
        ) from error


def _await_owner(lock: Path) -> None:
    """Let the `tranche run` above the workload give the share back itself, so that it can return the exit code."""
    deadline = time.monotonic() + _OWNER_SECONDS
    while is_held(lock) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
