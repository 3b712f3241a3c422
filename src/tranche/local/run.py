"""`tranche run`: a share for one command, from the request to the child's exit code."""

from __future__ import annotations

import os
import select
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from tranche.core.allocation import FractionalShare
from tranche.core.errors import TrancheError
from tranche.core.evidence import KeeperStatus
from tranche.core.request import Request
from tranche.core.sharing import Sharing
from tranche.core.state import GpuProcess, GpuState
from tranche.local.limits_watch import watching_limits
from tranche.local.orphans import OrphanTracker
from tranche.local.outside_watch import watching_outside
from tranche.local.queue import Cancelled, Queue
from tranche.local.queued_request import Record
from tranche.local.use_watch import watching_use
from tranche.local.workload import VISIBLE, find_command, run_workload, share_environment
from tranche.node.execution.executor import Progress, no_progress
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.interrupts import WaitInterrupted, heed_signals, ignore_signals, interrupt_if_told
from tranche.node.locks.wait_limit import WaitLimit
from tranche.node.mps.mps_records import DaemonRecord
from tranche.node.processes.keeping import RemainingProcesses
from tranche.node.processes.processes import Process
from tranche.node.store import chronicle
from tranche.planning.decide.allocate import Waiting

_AFTERMATH_SECONDS = 0.25
_BY_SIGNAL = 128
_LOST_SECONDS = 5.0
"""For so long a lost limit waits for others to end their decisions before it is written down by somebody later."""


def run(
    host: Host,
    request: Request,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    patience: WaitLimit,
    adopt_foreign_destroy: bool = False,
    record: Record | None = None,
    waiting: Callable[[Waiting, int, str], None] = lambda outcome, ahead, told: None,
    granted: Callable[[HeldAllocation, Mapping[str, GpuState]], None] = lambda held, gpus: None,
    progress: Progress = no_progress,
    cancelled: Callable[[Exception], None] = lambda error: None,
    left: Callable[[RemainingProcesses], None] = lambda remains: None,
    kept: Callable[[Exception], None] = lambda error: None,
    unlimited: Callable[[str], None] = lambda why: None,
    above: Callable[[FractionalShare, GpuState, int], None] = lambda part, gpu, used: None,
    hit: Callable[[str], None] = lambda why: None,
    outside: Callable[[GpuProcess, GpuState], None] = lambda process, gpu: None,
) -> int:
    """Wait for a share, run the command in it, and give the share back; the command's exit code.

    What the command started may outlive it: `left` is told what of it keeps the share, which comes back when that ends.
    `cancelled` is told when somebody cancels the request while it waits; the code is that of SIGTERM then. The command's code
    is returned also when the share cannot be given back, because the disk is full say. `kept` is told why; the next `tranche`
    takes the share from this dead process. `record` is told each decision. `unlimited` is called from another thread when the
    daemon that keeps the share's limits dies or is told others, and why; `above` when its processes together have more bytes than
    a part of it. `hit` is called likewise when the daemon's server ends under the share's programs, and why they fail. `outside`
    is called when a program of the command uses another GPU or slice than the share's, and which.

    Of the signals that end a process, only the command gets those that come from its start to its end. One that comes before ends
    the wait or the plan; none that comes later changes how this process ends.
    """
    heed_signals()
    path = find_command(command[0], environment)
    queue = Queue(host, adopt_foreign_destroy=adopt_foreign_destroy, record=record)
    try:
        held = queue.acquire(
            request,
            command=_as_text(command),
            pid=os.getpid(),
            patience=patience,
            waiting=waiting,
            progress=progress,
        )
        orphans = OrphanTracker()
        try:
            with ExitStack() as stack:
                if held.group is not None:
                    stack.callback(host.memory_groups.drop, held.group)
                gpus = {uuid: host.observe_gpu(uuid) for uuid in {each.gpu_uuid for each in held.allocation.grants}}
                share = share_environment(held, gpus.__getitem__, host.places)
                granted(held, gpus)
                stack.enter_context(
                    watching_limits(
                        held.allocation,
                        host.daemons.records,
                        lambda why: _limits_lost(host, lambda: unlimited(why)),
                        lambda record: limits_changed(host, record),
                        lambda pid: _server_ended(host, held, pid, hit),
                    )
                )
                stack.enter_context(
                    watching_use(
                        held.allocation,
                        host.observe_gpu,
                        lambda part, gpu, used: _limits_lost(host, lambda: above(part, gpu, used)),
                    )
                )
                stack.enter_context(
                    watching_outside(held.allocation, f"{VISIBLE}={share[VISIBLE]}", host.driver.observe, outside)
                )
                code = run_workload(
                    path,
                    command,
                    {**environment, **share},
                    held,
                    lambda pid: host.set_holder(held, pid),
                    None if held.group is None else held.group.folder,
                    interrupt_if_told,
                )
                ignore_signals()
        except BaseException:
            ignore_signals()
            _give_back(queue, held, orphans, left, why="the command could not be run")
            raise
        if code != 0 and any(
            isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS for grant in held.allocation.grants
        ):
            with suppress(TrancheError):  # a fault of its own may have hit others, who are known by now
                host.view(seconds=_LOST_SECONDS, thorough=True)
        try:
            why = f"the command ended with exit code {code}"
            _give_back(queue, held, orphans, left, why=why, killed=code >= _BY_SIGNAL)
        except (TrancheError, OSError) as error:
            kept(error)
        if any(isinstance(grant, FractionalShare) and grant.in_turns for grant in held.allocation.grants):
            with suppress(TrancheError):  # the last one to take turns puts their length back, or the next command does
                host.view(seconds=_LOST_SECONDS)
        return code
    except Cancelled as stop:
        cancelled(stop)
        return 128 + signal.SIGTERM
    except WaitInterrupted as stop:
        return stop.exit_code
    finally:
        ignore_signals()


def _as_text(command: Sequence[str]) -> str:
    """The command for people; a byte that is no UTF-8 is shown as the replacement character."""
    return os.fsencode(shlex.join(command)).decode(errors="replace")


def _limits_lost(host: Host, unlimited: Callable[[], None]) -> None:
    """Tell the person, and have it written down for everybody else."""
    unlimited()
    with suppress(TrancheError):
        host.view(seconds=_LOST_SECONDS, thorough=True)


def _server_ended(host: Host, held: HeldAllocation, pid: int, hit: Callable[[str], None]) -> None:
    """Tell the person, and write it down: the limits hold for whoever starts again."""
    why = f"the MPS server of this share, process {pid}, was killed or shut down: programs that were using it get CUDA error 806"
    hit(f"{why}, and have to be started again")
    with suppress(TrancheError), host.ledger.write() as db:
        chronicle.server_ended(db, time.time(), held.allocation, pid)


def limits_changed(host: Host, record: DaemonRecord) -> bool:
    """Whether somebody has told the daemon other limits: where it has news, by the word of a decision, as nobody joins then."""
    if host.daemons.health.has_news(record):
        host.view(seconds=_LOST_SECONDS, thorough=True)
    now = host.daemons.records.find(record.gpu_uuid, record.slot)
    return now is not None and now.changed


def _give_back(
    queue: Queue,
    held: HeldAllocation,
    orphans: OrphanTracker,
    left: Callable[[RemainingProcesses], None],
    *,
    why: str,
    killed: bool = True,
) -> None:
    # What the command started often ends a moment after it, and is not worth a word.
    deadline = time.monotonic() + _AFTERMATH_SECONDS
    while (living := orphans.living()) and time.monotonic() < deadline:
        _await_end(living, deadline)
    while (remains := queue.give_back(held, why=why, orphans=living, killed=killed)).life is not KeeperStatus.GONE:
        if time.monotonic() >= deadline:
            break
        _await_end(remains.processes, deadline)
        living = orphans.living()
    if remains.life is not KeeperStatus.GONE:
        left(remains)


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
