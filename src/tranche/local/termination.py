"""Taking a share back from a workload that lives: ask it to end, insist after a while, then see the share given back."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from tranche.core.allocation import Allocation
from tranche.core.errors import AllocationUnknown, GpuBusy, PermissionDenied
from tranche.local.queue import Queue
from tranche.node import records
from tranche.node.agent import Agent
from tranche.node.locks import is_held
from tranche.node.session import process_lives

_POLL_SECONDS = 0.02
_OWNER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a share came back: `signal` is the last signal that its workload was sent, 0 for none."""

    allocation_id: str
    pid: int
    signal: int


def take_back(agent: Agent, allocation_id: str, *, terminate: bool, grace: float) -> Ended:
    """Give a share back; a workload that lives is sent SIGTERM, then SIGKILL after `grace` seconds, when `terminate` says so.

    Raises GpuBusy while the workload lives without `terminate`, AllocationUnknown when there is none of that id, PermissionDenied
    when the workload is another user's.
    """
    with agent.ledger.read() as db:
        allocation = next((each for each in records.allocations(db) if each.id == allocation_id), None)
        pid, started = records.holders(db).get(allocation_id, (0, 0))
    if allocation is None:
        raise AllocationUnknown(
            f"there is no allocation and no waiting request {allocation_id}",
            hint="list them with: tranche ps",
        )
    sent = 0
    if process_lives(pid, started):
        if not terminate:
            raise _busy(allocation, f"pid {pid} ({allocation.command})")
        sent = _end(pid, started, grace)
        _await_owner(agent, allocation_id)
    elif is_held(agent.places.allocation(allocation_id)):
        raise _busy(allocation, "a process that has not said which workload it runs")
    # `tranche run` may have seen its workload end, and given the share back itself.
    with suppress(AllocationUnknown):
        Queue(agent).release(allocation_id, why="taken back with tranche release")
    return Ended(allocation_id, pid, sent)


def cancel_waiter(agent: Agent, waiter_id: str) -> int | None:
    """End the command that waits under that id with SIGTERM, and return its pid; None when no request of that id waits."""
    waiter = next((each for each in agent.waiters() if each.id == waiter_id), None)
    if waiter is None:
        return None
    if is_held(agent.places.waiter(waiter_id)):
        _signal(waiter.pid, signal.SIGTERM)
    return waiter.pid


def _busy(allocation: Allocation, who: str) -> GpuBusy:
    return GpuBusy(
        f"allocation {allocation.id} ({allocation.request}) is in use by {who}",
        hint=f"end it and take the share back with: tranche release {allocation.id} --terminate",
    )


def _end(pid: int, started: int, grace: float) -> int:
    """End a process; the last signal that it was sent."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0
    try:
        if not process_lives(pid, started):
            return 0
        _signal(pid, signal.SIGTERM)
        if _ended(watched, grace):
            return signal.SIGTERM
        _signal(pid, signal.SIGKILL)
        _ended(watched, None)
        return signal.SIGKILL
    finally:
        os.close(watched)


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


def _await_owner(agent: Agent, allocation_id: str) -> None:
    """Let the `tranche run` above the workload give the share back itself, so that it can return the exit code."""
    path = agent.places.allocation(allocation_id)
    deadline = time.monotonic() + _OWNER_SECONDS
    while is_held(path) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
