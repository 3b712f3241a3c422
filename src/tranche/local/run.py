"""`tranche run`: a share for one command, from the request to the child's exit code."""

from __future__ import annotations

import os
import select
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from tranche.core.allocation import Allocation, FractionalShare, Grant
from tranche.core.errors import TrancheError
from tranche.core.keeper import KeeperStatus
from tranche.core.request import Request
from tranche.core.sharing import Sharing
from tranche.core.state import GpuProcess, GpuState
from tranche.local.child import OrphanTracker
from tranche.local.queue import Cancelled, Queue, Record
from tranche.local.watches import watching_limits, watching_outside, watching_use
from tranche.local.workload import VISIBLE, find_command, run_workload, share_environment
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.locks.interrupts import WaitInterrupted, heed_signals, ignore_signals, interrupt_if_told
from tranche.node.mps.mps_records import DaemonRecord
from tranche.node.processes.keeping import RemainingProcesses
from tranche.node.processes.processes import Process
from tranche.node.store import chronicle
from tranche.planning.decide.allocate import Waiting
from tranche.planning.steps import Step

_AFTERMATH_SECONDS = 0.25
_BY_SIGNAL = 128
_LOST_SECONDS = 5.0
"""How long a lost limit waits for others to end their decisions, before it is left to a later command to write down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A command to run in a share: `request` says which share, `patience` how long to wait.

    `record` receives each decision. `adopt_foreign_destroy`: idle foreign instances may be destroyed for it.
    """

    request: Request
    command: Sequence[str]
    environment: Mapping[str, str]
    patience: WaitLimit
    adopt_foreign_destroy: bool = False
    record: Record | None = None

    @property
    def text(self) -> str:
        """The command for people; a byte that is not UTF-8 shows as the replacement character."""
        return os.fsencode(shlex.join(self.command)).decode(errors="replace")


class RunReporter:
    """Receives the events of a run and ignores them. Events while the command runs come from another thread."""

    def waiting(self, outcome: Waiting, ahead: int, reasons: str) -> None:
        """There is no share yet; `ahead` requests are ahead, and `reasons` says why in words."""

    def cancelled(self, error: Exception) -> None:
        """The request was cancelled while it waited."""

    def step(self, gpu: GpuState, step: Step) -> None:
        """A step of the plan is about to change that GPU."""

    def granted(self, held: HeldAllocation, gpus: Mapping[str, GpuState]) -> None:
        """The share is there, and the command is about to start."""

    def unlimited(self, why: str) -> None:
        """The daemon that keeps the share's limits died, or its limits were changed: the share counts as unlimited."""

    def above(self, part: FractionalShare, gpu: GpuState, used: int) -> None:
        """The share's processes together use more bytes than its part has."""

    def server_ended(self, why: str) -> None:
        """The daemon's server ended under the share's programs; `why` says why they fail."""

    def outside(self, process: GpuProcess, gpu: GpuState) -> None:
        """A program of the command uses another GPU or slice than the share's."""

    def left(self, remains: RemainingProcesses) -> None:
        """The command has ended; something it started keeps the share until that ends."""

    def kept(self, error: Exception) -> None:
        """The share cannot be given back, say because the disk is full; the next `tranche` takes it from this dead process."""


def run(host: Host, asked: RunRequest, reporter: RunReporter | None = None) -> int:
    """Wait for a share, run the command in it, and give the share back; returns the command's exit code.

    The code is that of SIGTERM if the request is cancelled while it waits. The command's code is returned even if the share
    cannot be given back.

    Between the command's start and end, only the command receives the signals that end a process. An earlier signal ends the wait
    or the plan; a later one does not change how this process ends.
    """
    reporter = reporter or RunReporter()
    heed_signals()
    path = find_command(asked.command[0], asked.environment)
    queue = Queue(host, adopt_foreign_destroy=asked.adopt_foreign_destroy, record=asked.record)
    try:
        held = queue.acquire(
            asked.request,
            command=asked.text,
            pid=os.getpid(),
            patience=asked.patience,
            waiting=reporter.waiting,
            progress=reporter.step,
        )
        orphans = OrphanTracker()
        try:
            code = _run_in_share(host, held, asked, path, reporter)
        except BaseException:
            ignore_signals()
            _give_back(queue, held, orphans, reporter, why="the command could not be run")
            raise
        if code != 0 and any(_is_by_mps(grant) for grant in held.allocation.grants):
            with suppress(TrancheError):  # its own fault may have hit others, who are known by now
                host.view(seconds=_LOST_SECONDS, thorough=True)
        try:
            why = f"the command ended with exit code {code}"
            _give_back(queue, held, orphans, reporter, why=why, killed=code >= _BY_SIGNAL)
        except (TrancheError, OSError) as error:
            reporter.kept(error)
        if any(isinstance(grant, FractionalShare) and grant.in_turns for grant in held.allocation.grants):
            with suppress(TrancheError):  # the last to take turns restores their length, or the next command does
                host.view(seconds=_LOST_SECONDS)
        return code
    except Cancelled as stop:
        reporter.cancelled(stop)
        return _BY_SIGNAL + signal.SIGTERM
    except WaitInterrupted as stop:
        return stop.exit_code
    finally:
        ignore_signals()


def _run_in_share(host: Host, held: HeldAllocation, asked: RunRequest, path: str, reporter: RunReporter) -> int:
    """Run the command to its end while watching its share; returns its exit code."""
    allocation = held.allocation
    with ExitStack() as stack:
        if held.group is not None:
            stack.callback(host.memory_groups.drop, held.group)
        gpus = {uuid: host.observe_gpu(uuid) for uuid in {each.gpu_uuid for each in allocation.grants}}
        share = share_environment(held, gpus.__getitem__, host.places)
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
        code = run_workload(
            path,
            asked.command,
            {**asked.environment, **share},
            held,
            lambda pid: host.set_holder(held, pid),
            None if held.group is None else held.group.folder,
            interrupt_if_told,
        )
        ignore_signals()
        return code


@dataclass(frozen=True, slots=True)
class _ShareWatch:
    """Tells the person what it finds while the command runs, and writes it down for others."""

    host: Host
    allocation: Allocation
    reporter: RunReporter

    def limits_lost(self, why: str) -> None:
        self.reporter.unlimited(why)
        self._write_down()

    def above(self, part: FractionalShare, gpu: GpuState, used: int) -> None:
        self.reporter.above(part, gpu, used)
        self._write_down()

    def server_ended(self, pid: int) -> None:
        """Report and write down a server that ended; the limits hold for programs that start again."""
        why = f"the MPS server of this share, process {pid}, was killed or shut down"
        hit = "programs that were using it get CUDA error 806; start them again"
        self.reporter.server_ended(f"{why}: {hit}")
        with suppress(TrancheError), self.host.ledger.write() as db:
            chronicle.server_ended(db, time.time(), self.allocation, pid)

    def _write_down(self) -> None:
        with suppress(TrancheError):
            self.host.view(seconds=_LOST_SECONDS, thorough=True)


def limits_changed(host: Host, record: DaemonRecord) -> bool:
    """Whether the daemon's limits were changed. If it has news, a decision finds out, because no program joins meanwhile."""
    if host.daemons.health.has_news(record):
        host.view(seconds=_LOST_SECONDS, thorough=True)
    now = host.daemons.records.find(record.gpu_uuid, record.slot)
    return now is not None and now.changed


def _is_by_mps(grant: Grant) -> bool:
    return isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS


def _give_back(
    queue: Queue, held: HeldAllocation, orphans: OrphanTracker, reporter: RunReporter, *, why: str, killed: bool = True
) -> None:
    # Processes that the command started often end a moment after it, and need no message.
    deadline = time.monotonic() + _AFTERMATH_SECONDS
    while (living := orphans.living()) and time.monotonic() < deadline:
        _await_end(living, deadline)
    while (remains := queue.give_back(held, why=why, orphans=living, killed=killed)).life is not KeeperStatus.GONE:
        if time.monotonic() >= deadline:
            break
        _await_end(remains.processes, deadline)
        living = orphans.living()
    if remains.life is not KeeperStatus.GONE:
        reporter.left(remains)


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
