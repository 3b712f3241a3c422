"""`tranche run`: a share for one command, from the request to the child's exit code."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tranche.core.allocation import HELD, Allocation, FractionalShare, NodeView, parts_by
from tranche.core.errors import AllocationUnknown, FenceUnavailable, SharingUnavailable, TrancheError
from tranche.core.keeper import KeeperStatus
from tranche.core.request import Request
from tranche.core.sharing import Sharing
from tranche.core.state import GpuState
from tranche.local.child import beside
from tranche.local.queue import Cancelled, Queue, Record
from tranche.local.run_report import RunReporter
from tranche.local.watches import ReservationWatch, watching_limits, watching_long, watching_outside, watching_use
from tranche.local.workload import VISIBLE, Workload, share_environment
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.locks.interrupts import (
    WaitInterrupted,
    heed_signals,
    ignore_signals,
    interrupt_if_told,
    uninterruptible,
)
from tranche.node.locks.locks import lock_pids
from tranche.node.mps.mps_records import DaemonRecord
from tranche.node.processes.processes import Process
from tranche.node.state.session import boot_clock
from tranche.node.store import chronicle, records, register
from tranche.planning.decide.allocate import Granted, Waiting
from tranche.planning.decide.queue import WaitingRequest

if TYPE_CHECKING:
    from tranche.local.time_limit import TimeLimit

_AFTERMATH_SECONDS = 0.25
_BY_SIGNAL = 128
_LOST_SECONDS = 5.0
"""How long a lost limit waits for others to end their decisions, before it is left to a later command to write down."""


class RunRequest(NamedTuple):
    """A command to run in a share: `request` says which share, `patience` how long to wait.

    `record` receives each decision. `adopt_foreign_destroy`: idle foreign instances may be destroyed for it. `cdi`: containers
    can use the share.
    """

    request: Request
    workload: Workload
    patience: WaitLimit
    adopt_foreign_destroy: bool = False
    record: Record | None = None
    cdi: bool = False


class RunResult(NamedTuple):
    """The exit code of a command, and whether the command ended because another request needed its share."""

    code: int
    preempted: bool = False


def run(host: Host, asked: RunRequest, reporter: RunReporter) -> RunResult:
    """Wait for a share, run the command in it, and give the share back.

    The code is that of SIGTERM if the request is cancelled while it waits. The command's code is returned even if the share
    cannot be given back.

    Between the command's start and end, only the command receives the signals that end a process. An earlier signal ends the wait
    or the plan; a later one does not change how this process ends.
    """
    if asked.cdi:
        from tranche.local.share_spec import refuse_without_cdi  # seldom needed

        refuse_without_cdi(host)
    _refuse_fenced_hold(host, asked)
    if asked.request.preemptible:
        with host.ledger.read() as db:
            records.refuse_preemptible(db, asked.request)
    heed_signals()
    queue = Queue(
        host,
        adopt_foreign_destroy=asked.adopt_foreign_destroy,
        record=asked.record,
        refuse=partial(_refuse_out_of_reach, host, asked),
        preempt=partial(_preempt, host),
        held_up=reporter.held_up,
    )
    try:
        held = queue.acquire(
            asked.request,
            command=asked.workload.text,
            pid=asked.workload.pid,
            patience=asked.patience,
            waiting=partial(_waiting, host, reporter),
            progress=reporter.step,
        )
        asked.workload.note_children()
        try:
            limit = _time_limit(host, held, asked.workload, reporter)
            code = _run_in_share(host, held, asked.workload, reporter, limit, cdi=asked.cdi)
        except BaseException:
            ignore_signals()
            _give_back(queue, held, asked.workload, reporter, why="the command could not be run")
            _drop_group(host, held)
            raise
        if code != 0 and parts_by(Sharing.MPS, held.allocation.grants):
            with suppress(TrancheError):  # its own fault may have hit others, who are known by now
                host.view(seconds=_LOST_SECONDS, thorough=True)
        try:
            why = f"the command ended with exit code {code}"
            if limit is not None:
                limit.end_orphans()
                why += f", because {limit.why}" if limit.over else ""
            if limit is not None and limit.ended_hold():
                held.lock.release()
                with suppress(AllocationUnknown):  # what its shell starts now has the share's variables, but no share
                    queue.release(held.allocation.id, why=why)
            else:
                _give_back(queue, held, asked.workload, reporter, why=why, killed=code >= _BY_SIGNAL)
            _drop_group(host, held)
        except (TrancheError, OSError) as error:
            reporter.kept(error)
        if any(isinstance(grant, FractionalShare) and grant.in_turns for grant in held.allocation.grants):
            with suppress(TrancheError):  # the last to take turns restores their length, or the next command does
                host.view(seconds=_LOST_SECONDS)
        return RunResult(code, limit is not None and limit.preempted)
    except Cancelled as stop:
        reporter.warn(str(stop))
        return RunResult(_BY_SIGNAL + signal.SIGTERM)
    except WaitInterrupted as stop:
        return RunResult(stop.exit_code)
    finally:
        ignore_signals()


def _refuse_fenced_hold(host: Host, asked: RunRequest) -> None:
    """FenceUnavailable for a hold of a user behind the fence: the programs of the session are in no share's group."""
    if asked.workload.text != HELD:
        return
    with host.ledger.read() as db:
        exempt = records.fence(db)
    if exempt is not None and asked.workload.uid not in exempt:
        raise FenceUnavailable(
            "this machine has a fence, so a session cannot open a GPU, even if it holds a share",
            hint="run a shell in the share: tranche run REQUEST -- bash",
        )


def _refuse_out_of_reach(host: Host, asked: RunRequest, decision: Granted) -> None:
    """Refuse what does not reach the programs: the fence a session, and the driver's memory limits a session.

    Raises FenceUnavailable and SharingUnavailable.
    """
    _refuse_fenced_hold(host, asked)
    if not parts_by(Sharing.MEMORY_LIMITS, decision.grants):
        return
    if asked.cdi:
        from tranche.local.share_spec import refuse_unlimited

        refuse_unlimited(host, asked.workload.uid)
    elif asked.workload.text == HELD:
        raise SharingUnavailable(
            "the driver can limit the memory of a command, but not of a session",
            hint="run a shell in the share: tranche run REQUEST -- bash; or use --isolation hard or --compute",
        )


def _preempt(
    host: Host, view: NodeView, waiters: Sequence[WaitingRequest], waiter_id: str, now: float
) -> Sequence[str]:
    from tranche.local.preemption import preempt  # few machines allow preemptible commands

    return preempt(host, view, waiters, waiter_id, now)


_SERVICE_FIRST_SECONDS = 60.0
"""The service ends what should have ended with more patience than a request that waits; if it is stopped, requests do it."""


def _waiting(host: Host, reporter: RunReporter, outcome: Waiting, ahead: int, reasons: str) -> None:
    """Tell why there is no share yet, and see that the shares of others end in time."""
    reporter.waiting(outcome, ahead, reasons)
    with uninterruptible(), host.ledger.read() as db:
        limited = any(each.request.time_limit is not None for each in register.allocations(db))
    if limited:
        from tranche.local.time_limit import end_overdue  # most machines have no time limits

        later = _SERVICE_FIRST_SECONDS if lock_pids(host.places.service_lock) else 0.0
        with uninterruptible():
            end_overdue(host, lambda: boot_clock() - later)


def _time_limit(host: Host, held: HeldAllocation, workload: Workload, reporter: RunReporter) -> TimeLimit | None:
    """What ends the command before its own end: its time limit, preemption or, for a hold, that it is idle."""
    request = held.allocation.request
    if request.time_limit is None and not request.preemptible and held.allocation.command != HELD:
        return None
    from tranche.local.time_limit import TimeLimit  # most commands have none

    return TimeLimit(host, held.allocation, workload, reporter.warn)


def _run_in_share(
    host: Host,
    held: HeldAllocation,
    workload: Workload,
    reporter: RunReporter,
    limit: TimeLimit | None,
    *,
    cdi: bool,
) -> int:
    """Run the command to its end while watching its share; returns its exit code."""
    allocation = held.allocation
    with ExitStack() as stack:
        gpus = {uuid: host.observe_gpu(uuid) for uuid in {each.gpu_uuid for each in allocation.grants}}
        host.daemons.open_to(allocation, workload.uid)
        share = share_environment(held, gpus.__getitem__, host.places, workload.uid)
        if cdi:
            from tranche.local.share_spec import CDI_DEVICE, write_share_spec  # seldom needed

            share[CDI_DEVICE] = write_share_spec(host, held, gpus, workload.uid)
            if parts_by(Sharing.MEMORY_LIMITS, allocation.grants):
                share[VISIBLE] = ""  # only containers can use the share
        reporter.granted(held, gpus)
        watch = _ShareWatch(host, allocation, reporter)
        stack.enter_context(
            watching_limits(
                allocation,
                host.daemons.records,
                watch.limits_lost,
                lambda record: limits_changed(host, record),
                watch.server_ended,
            )
        )
        stack.enter_context(watching_use(allocation, host.observe_gpu, watch.above))
        confined = f"{VISIBLE}={share[VISIBLE]}"
        stack.enter_context(watching_outside(allocation, confined, host.driver.observe, reporter.outside))
        if limit is not None and (allocation.request.time_limit is not None or allocation.request.preemptible):
            stack.enter_context(beside("time", limit.enforce))
        stack.enter_context(watching_long(partial(_long_look, host, allocation, reporter, limit)))
        code = workload.run(held, share, lambda pid: host.set_holder(held, pid), interrupt_if_told)
        ignore_signals()
        return code


def _long_look(
    host: Host, allocation: Allocation, reporter: RunReporter, limit: TimeLimit | None
) -> Callable[[], float]:
    """What is looked at each minute while a command runs: whether its share is idle, and whether others reserved its GPUs."""
    from tranche.local.idle import IdleWatch  # most commands end before the first look

    ends = () if limit is None else (limit.end_idle, limit.programs)
    idle, reserved = (
        IdleWatch(host, allocation, reporter.warn, *ends),
        ReservationWatch(host, allocation, reporter.warn),
    )

    def look() -> float:
        with suppress(Exception):  # a failed look is repeated
            reserved.look()
        return idle.look()

    return look


class _ShareWatch(NamedTuple):
    """Tells the person what it finds while the command runs, and writes it down for others."""

    host: Host
    allocation: Allocation
    reporter: RunReporter

    def limits_lost(self, why: str) -> None:
        self.reporter.warn(why)
        self._write_down()

    def above(self, part: FractionalShare, gpu: GpuState, used: int) -> None:
        self.reporter.above(part, gpu, used)
        self._write_down()

    def server_ended(self, pid: int) -> None:
        """Report and write down a server that ended; the limits hold for programs that start again."""
        why = f"the MPS server of this share, process {pid}, was killed or shut down"
        hit = "programs that were using it get CUDA error 806; start them again"
        self.reporter.warn(f"{why}: {hit}")
        with suppress(TrancheError), self.host.ledger.write() as db:
            chronicle.server_ended(db, time.time(), self.allocation, pid)

    def _write_down(self) -> None:
        with suppress(TrancheError):
            self.host.view(seconds=_LOST_SECONDS, thorough=True)


def limits_changed(host: Host, record: DaemonRecord) -> bool:
    """Whether the daemon's limits were changed. If it has news, a decision finds out, because no program joins meanwhile."""
    if host.daemons.has_news(record):
        host.view(seconds=_LOST_SECONDS, thorough=True)
    now = host.daemons.records.find(record.gpu_uuid, record.slot)
    return now is not None and now.changed


def _give_back(
    queue: Queue, held: HeldAllocation, workload: Workload, reporter: RunReporter, *, why: str, killed: bool = True
) -> None:
    # Processes that the command started often end a moment after it, and need no message.
    deadline = time.monotonic() + _AFTERMATH_SECONDS
    while (living := workload.orphans()) and time.monotonic() < deadline:
        _await_end(living, deadline)
    while (remains := queue.give_back(held, why=why, orphans=living, killed=killed)).life is not KeeperStatus.GONE:
        if time.monotonic() >= deadline:
            break
        _await_end(remains.processes, deadline)
        living = workload.orphans()
    if remains.life is not KeeperStatus.GONE:
        reporter.left(remains)


def _drop_group(host: Host, held: HeldAllocation) -> None:
    """Remove the group of a share that is free now. One that its processes keep stays known by its group."""
    if held.group is None:
        return
    if host.allocation(held.allocation.id) is None:
        host.share_groups.drop(held.group)


def _await_end(processes: Sequence[Process], deadline: float) -> None:
    """Return when one of the processes has ended, or at the deadline."""
    with ExitStack() as stack:
        poll = select.poll()
        for each in processes:
            try:
                descriptor = os.pidfd_open(each.pid)
            except ProcessLookupError:
                return
            stack.callback(os.close, descriptor)
            poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
