"""Runs a batch of jobs: each asks the queue for a share, runs in it as a child process, and gives it back.

Each job has a thread of this process where `tranche run` would be a process; shares, plans and the ledger are the same. So the
cost of starting Python 56 times does not count; on a fast clock it would exceed the jobs' own time.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tranche.core.allocation import Grant
from tranche.core.errors import HardwareError
from tranche.core.state import GpuState
from tranche.demo.scene import DemoClock, DemoTracker
from tranche.demo.schedule import Job
from tranche.local.queue import Queue
from tranche.local.wakeup_pipe import ring
from tranche.local.workload import share_environment
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.planning.decide.allocate import Waiting
from tranche.planning.steps import Step

Command = Callable[[float], Sequence[str]]
"""Maps a job's real seconds to its command."""

_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class JobRecord:
    """How a job was served; times in seconds of the demo's clock. `created` and `destroyed` count instances."""

    job: Job
    grants: tuple[Grant, ...]
    created: int
    destroyed: int
    asked: float
    granted: float
    ended: float


class _Stopped(Exception):
    """The batch is being stopped."""


class JobRunner:
    """Runs batches on one machine."""

    def __init__(
        self, host: Host, clock: DemoClock, command: Command, environment: Mapping[str, str], scene: DemoTracker
    ) -> None:
        self._host = host
        self._queue = Queue(host)
        self._clock = clock
        self._command = command
        self._environment = environment
        self._scene = scene
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._children: set[subprocess.Popen[str]] = set()
        self._records: list[JobRecord] = []
        self._errors: list[Exception] = []

    def run(self, jobs: Sequence[Job], told: Callable[[JobRecord], None] = lambda record: None) -> list[JobRecord]:
        """Run the jobs to their end; a job's thread calls `told` when it has ended.

        They ask in order. Each asks no earlier than its arrival, and after the previous one has its answer: a share, or a place
        in the queue. However this ends, no child is left. Raises the first error of a job.
        """
        self._records, self._errors = [], []
        began = self._clock.now()
        threads: list[threading.Thread] = []
        try:
            for job in jobs:
                if self._stopping.wait(self._clock.real(began + job.arrival - self._clock.now())):
                    break
                answered = threading.Event()
                threads.append(threading.Thread(target=self._serve, args=(job, answered.set, told), name=job.name))
                threads[-1].start()
                answered.wait()
            for thread in threads:
                while thread.is_alive() and not self._stopping.is_set():
                    thread.join(_LOOK_SECONDS)
        finally:
            self._stopping.set()
            self._end(threads)
            self._stopping.clear()
        if self._errors:
            raise self._errors[0]
        order = {job.name: position for position, job in enumerate(jobs)}
        return sorted(self._records, key=lambda record: order[record.job.name])

    def _end(self, threads: Sequence[threading.Thread]) -> None:
        """End running jobs, and wake waiting ones so that they see that the batch is stopping."""
        while alive := [thread for thread in threads if thread.is_alive()]:
            with self._lock:
                for child in self._children:
                    child.terminate()
            for waiter in self._host.waiters():
                if waiter.pid == os.getpid():
                    ring(self._host.places.wakeup_pipe(waiter.id))
            alive[0].join(_LOOK_SECONDS)

    def _serve(self, job: Job, answered: Callable[[], None], told: Callable[[JobRecord], None]) -> None:
        try:
            record = self._run_job(job, answered)
            with self._lock:
                self._records.append(record)
            told(record)
        except _Stopped:
            pass
        except Exception as error:  # the batch's caller raises it
            self._errors.append(error)
            self._stopping.set()
        finally:
            answered()

    def _run_job(self, job: Job, answered: Callable[[], None]) -> JobRecord:
        asked = self._clock.now()
        self._scene.asked()
        steps: list[Step] = []

        def waiting(outcome: Waiting, ahead: int, told: str) -> None:
            answered()
            self._check_not_stopping()

        def progress(gpu: GpuState, step: Step) -> None:
            steps.append(step)
            self._scene.step(gpu, step)

        held = self._queue.acquire(
            job.request,
            command=job.name,
            pid=os.getpid(),
            patience=WaitLimit(),
            waiting=waiting,
            progress=progress,
        )
        answered()
        grants = held.allocation.grants
        try:
            granted = self._clock.now()
            self._run_child(job, held)
            ended = self._clock.now()
        finally:
            self._queue.release(held.allocation.id, why=f"{job.name} ended")
            held.lock.release()
        created = sum(step.creates is not None for step in steps)
        destroyed = sum(step.destroys is not None for step in steps)
        return JobRecord(job, grants, created, destroyed, asked, granted, ended)

    def _run_child(self, job: Job, held: HeldAllocation) -> None:
        share = share_environment(held, self._host.observe_gpu, self._host.places)
        with self._lock:
            self._check_not_stopping()
            child = subprocess.Popen(
                self._command(self._clock.real(job.seconds)),
                env={**self._environment, **share},
                pass_fds=(held.lock.descriptor,),
                stdin=subprocess.PIPE,  # closes when this process dies, and a simulated job then ends
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._children.add(child)
        self._scene.started(held.allocation.grants)
        try:
            with child:
                said = self._attend(child, held)
        finally:
            with self._lock:
                self._children.discard(child)
            self._scene.ended(held.allocation.grants)
        self._check_not_stopping()
        if child.returncode != 0:
            raise HardwareError(f"{job.name} exited with code {child.returncode}: {said.strip()}")

    def _attend(self, child: subprocess.Popen[str], held: HeldAllocation) -> str:
        """Wait for the child's end; returns what it wrote to stderr."""
        assert child.stderr is not None, "the child was started with a pipe"
        try:
            self._host.set_holder(held, child.pid)
            said = child.stderr.read()
        except BaseException:
            child.kill()
            raise
        child.wait()
        return said

    def _check_not_stopping(self) -> None:
        if self._stopping.is_set():
            raise _Stopped
