"""Taking a share back from a workload that lives: ask it to end, insist after a while, then see the share given back."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tranche.core.allocation import Allocation
from tranche.core.errors import AllocationUnknown, GpuBusy, PermissionDenied
from tranche.core.keeper import ProcessKeeper
from tranche.local.queue import Queue
from tranche.node import register
from tranche.node.host import Host
from tranche.node.keeping import remains_of
from tranche.node.locks import is_held
from tranche.node.session import process_lives

_POLL_SECONDS = 0.02
_OWNER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a share came back: `signal` is the last signal that was sent, 0 for none."""

    allocation_id: str
    pids: tuple[int, ...]
    signal: int


def take_back(host: Host, allocation_id: str, *, terminate: bool, grace: float) -> Ended:
    """Give a share back; a workload that lives is sent SIGTERM, then SIGKILL after `grace` seconds, when `terminate` says so.

    Raises GpuBusy while somebody holds the share without `terminate`, AllocationUnknown when there is none of that id,
    PermissionDenied when the workload is another user's.
    """
    with host.ledger.read() as db:
        allocation = next((each for each in register.allocations(db) if each.id == allocation_id), None)
    if allocation is None:
        raise AllocationUnknown(
            f"there is no allocation and no waiting request {allocation_id}",
            hint="list them with: tranche ps",
        )
    if not isinstance(allocation.keeper, ProcessKeeper):
        raise GpuBusy(
            f"allocation {allocation.id} is held by {allocation.keeper}",
            hint="end it there: the node's agent then takes the share back by itself",
        )
    lock = host.places.allocation(allocation_id)
    keeper = allocation.keeper
    remains = remains_of(host.places, allocation_id, keeper)
    pids = [keeper.pid] if process_lives(keeper.pid, keeper.started) else [each.pid for each in remains.certain]
    if not terminate and (pids or remains.locked):
        raise _busy(allocation, pids)
    sent = _end_all(pids, grace)
    _await_owner(lock)
    # What the workload started may have outlived it, and keeps the share for as long as it lives.
    left = [each.pid for each in remains_of(host.places, allocation_id, keeper).certain]
    left += [pid for pid in _recorded(host, allocation_id) if pid not in (*pids, *left)]
    sent = _end_all(left, grace) or sent
    if is_held(lock):
        raise _busy(allocation, [])
    # `tranche run` may have given the share back itself, when it saw its workload end.
    with suppress(AllocationUnknown):
        Queue(host).release(allocation_id, why="taken back with tranche release")
    return Ended(allocation_id, (*pids, *left), sent)


def _recorded(host: Host, allocation_id: str) -> tuple[int, ...]:
    """The process that the register names for the allocation, when it lives: its `tranche run` may know an orphan by descent."""
    with host.ledger.read() as db:
        keepers = [each.keeper for each in register.allocations(db) if each.id == allocation_id]
    return tuple(
        each.pid for each in keepers if isinstance(each, ProcessKeeper) and process_lives(each.pid, each.started)
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


def _busy(allocation: Allocation, pids: Sequence[int]) -> GpuBusy:
    who = f"pid {', '.join(map(str, pids))}" if pids else "a process that only root can see"
    hint = f"end it and take the share back with: tranche release {allocation.id} --terminate"
    return GpuBusy(
        f"allocation {allocation.id} ({allocation.request}) is in use by {who}: {allocation.command}",
        hint=hint if pids else "run the command as root",
    )


def _end_all(pids: Sequence[int], grace: float) -> int:
    """End the processes; the last signal that was sent, 0 when none lives."""
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
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        stubborn = [(pid, each) for pid, each in watched if not _ended(each, max(0.0, deadline - time.monotonic()))]
        for pid, _ in stubborn:
            _signal(pid, signal.SIGKILL)
        for _, each in stubborn:
            _ended(each, None)
        return signal.SIGKILL if stubborn else signal.SIGTERM


def _ended(watched: int, seconds: float | None) -> bool:
    """Sleep until the process of the pidfd has ended; False when the time was over first."""
    ready, _, _ = select.select([watched], [], [], seconds)
    return bool(ready)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    except PermissionError as error:
        raise PermissionDenied(
            f"no permission to end pid {pid}", hint="run the command as the user who started it, or as root"
        ) from error


def _await_owner(lock: Path) -> None:
    """Let the `tranche run` above the workload give the share back itself, so that it can return the exit code."""
    deadline = time.monotonic() + _OWNER_SECONDS
    while is_held(lock) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
