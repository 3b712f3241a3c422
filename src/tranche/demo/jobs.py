"""The demo: times the same jobs on whole GPUs and in slices, then serves a mixture of requests on demand.

Each job asks the queue for a share, runs in it as a child process, and gives it back. It has a thread of this process where
`tranche run` would be a process; shares, plans and the ledger are the same. So the cost of starting Python 56 times does not
count; on a fast clock it would exceed the jobs' own time.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf

from tranche.core.allocation import Grant, NodeView
from tranche.core.errors import HardwareError, MigNotSupported
from tranche.core.layout import Layout, LayoutSpec
from tranche.core.profile import ProfileName
from tranche.core.state import GpuState
from tranche.demo.scene import DemoClock, DemoTracker
from tranche.demo.schedule import Job, ideal_seconds, mixed_batch, slice_batch, whole_gpu_batch
from tranche.local.queue import Queue
from tranche.local.wakeup_pipe import ring
from tranche.local.workload import share_environment
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.locks.interrupts import interrupt_if_told
from tranche.planning.decide.allocate import Waiting
from tranche.planning.decide.candidates import plain_profiles
from tranche.planning.layouts.named_layouts import most_instances
from tranche.planning.layouts.reconfigure import plan_layout
from tranche.planning.steps import Step
from tranche.planning.steps.plan import Plan

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


def _await(event: threading.Event, seconds: float = inf) -> bool:
    """Wait at most so long for the event; returns whether it came. Raises WaitInterrupted for a noted signal.

    It looks for signals between its waits. One that was raised inside a wait could leave the event's own lock held.
    """
    until = time.monotonic() + seconds
    while not event.wait(max(0.0, min(_LOOK_SECONDS, until - time.monotonic()))):
        interrupt_if_told()
        if time.monotonic() >= until:
            return False
    return True


class DemoRunner:
    """Runs batches, and the three parts of the demo, on one machine."""

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
        in the queue. However this ends, no child is left. Raises the first error of a job, and WaitInterrupted for a signal that
        was noted.
        """
        self._records, self._errors = [], []
        began = self._clock.now()
        threads: list[threading.Thread] = []
        try:
            for job in jobs:
                if _await(self._stopping, self._clock.real(began + job.arrival - self._clock.now())):
                    break
                answered = threading.Event()
                threads.append(threading.Thread(target=self._serve, args=(job, answered.set, told), name=job.name))
                threads[-1].start()
                _await(answered)
            for thread in threads:
                while thread.is_alive() and not self._stopping.is_set():
                    thread.join(_LOOK_SECONDS)
                    interrupt_if_told()
        finally:
            self._stopping.set()
            self._end(threads)
            self._stopping.clear()
        interrupt_if_told()
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

    def play(self, gpus: Sequence[GpuState], seed: int) -> DemoResult:
        """Run all three parts on these idle GPUs of one product.

        Raises MigNotSupported if they cannot be cut, and the error that stops a plan or a job.
        """
        profiles = plain_profiles(gpus[0])
        if not profiles:
            raise MigNotSupported(f"{gpus[0].label} ({gpus[0].name}) cannot be partitioned into slices")
        smallest, model = profiles[0], gpus[0].name
        per_gpu = most_instances(smallest)
        number = per_gpu * len(gpus)
        self._begin(f"Part 1 of 3: {number} jobs, one per GPU on {len(gpus)} whole GPUs", gpus)
        whole = self._batch(whole_gpu_batch(number, model), at_once=len(gpus))
        self._begin(f"Part 2 of 3: the same {number} jobs at once, in slices of {smallest.name}", gpus)
        slices, steps = self._slices(slice_batch(number, smallest.name, model), gpus, smallest.name, per_gpu)
        self._begin("Part 3 of 3: requests by memory, share and profile, served on demand", gpus)
        mixed = self.run(mixed_batch(profiles, model, seed), self._tell)
        return DemoResult(self._clock.speed, tuple(gpus), smallest.name, whole, slices, steps, tuple(mixed))

    def _begin(self, title: str, gpus: Sequence[GpuState]) -> None:
        self._scene.begin(title, self._observe(gpus))

    def _observe(self, gpus: Sequence[GpuState]) -> list[GpuState]:
        return [self._host.driver.observe_gpu(gpu.uuid) for gpu in gpus]

    def _batch(self, jobs: Sequence[Job], at_once: int) -> BatchResult:
        began = self._clock.now()
        records = self.run(jobs, self._counting(len(jobs), at_once))
        return BatchResult(tuple(records), began, 0.0, ideal_seconds(jobs, at_once))

    def _slices(
        self, jobs: Sequence[Job], gpus: Sequence[GpuState], profile: ProfileName, per_gpu: int
    ) -> tuple[BatchResult, int]:
        spec = LayoutSpec(True, ((profile, per_gpu),), devices=tuple(gpu.index for gpu in gpus))
        layout = Layout(f"all-{profile}", (spec,))

        def decide(view: NodeView) -> Plan:
            decision = plan_layout(view, layout)
            decision.refuse_if_blocked()
            return decision.plan

        began = self._clock.now()
        plan = self._host.change(decide, progress=self._scene.step)
        cutting = self._clock.now() - began
        self._scene.show(self._observe(gpus))
        self._scene.announce(f"{len(gpus)} GPUs partitioned into {len(jobs)} slices in {len(plan.steps)} steps")
        records = self.run(jobs, self._counting(len(jobs), len(jobs)))
        return BatchResult(tuple(records), began, cutting, ideal_seconds(jobs, len(jobs))), len(plan.steps)

    def _counting(self, total: int, every: int) -> Callable[[JobRecord], None]:
        """What announces how many jobs have ended, at each so many of them."""
        ended = count(1)

        def told(record: JobRecord) -> None:
            done = next(ended)
            if done % every == 0:
                self._scene.announce(f"{done} of {total} jobs done")

        return told

    def _tell(self, record: JobRecord) -> None:
        self._scene.announce(f"{record.job.request.demand}: {served_by(record)}, {how_made(record)}")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """How a batch of equal jobs went, in seconds of the demo's clock.

    `seconds` is from the beginning to the last job's end, `cutting` the part of it before the first request, `ideal` what the
    jobs alone take. `at_once` is the largest number that ran at the same time.
    """

    records: tuple[JobRecord, ...]
    began: float
    cutting: float
    ideal: float

    @property
    def seconds(self) -> float:
        """From the beginning of the cutting to the end of the last job."""
        return max(record.ended for record in self.records) - self.began

    @property
    def overhead(self) -> float:
        """The batch's time beyond its jobs' own times."""
        return self.seconds - self.ideal

    @property
    def granting(self) -> float:
        """From the end of the cutting until every job of the first round had its share, for a batch of one round."""
        return max(record.granted for record in self.records) - self.began - self.cutting

    @property
    def at_once(self) -> int:
        """The largest number of jobs that ran at the same time."""
        return max(sum(other.granted <= one.granted < other.ended for other in self.records) for one in self.records)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo measured. `cut_steps` counts the steps of the plan that made the slices."""

    speed: float
    gpus: tuple[GpuState, ...]
    profile: ProfileName
    whole: BatchResult
    slices: BatchResult
    cut_steps: int
    mixed: tuple[JobRecord, ...]

    @property
    def ratio(self) -> float:
        """How many times faster the batch in slices was, including cutting and allocating."""
        return self.whole.seconds / self.slices.seconds

    @property
    def ratio_at_full_time(self) -> float:
        """The ratio with both batches' time beyond jobs and cutting counted once, not `speed` times."""

        def counted_once(batch: BatchResult) -> float:
            return batch.ideal + batch.cutting + (batch.overhead - batch.cutting) / self.speed

        return counted_once(self.whole) / counted_once(self.slices)

    @property
    def ideal_ratio(self) -> float:
        """The ratio of the jobs' own times."""
        return self.whole.ideal / self.slices.ideal


def served_by(record: JobRecord) -> str:
    """What a job received: profile and placement, or the whole GPU."""
    grant = record.grants[0]
    return "a whole GPU" if grant.slot is None else f"{grant.slot.profile} at {grant.slot.placement}"


def how_made(record: JobRecord) -> str:
    """Where the job's instance came from."""
    if record.destroyed:
        return f"made in place of {record.destroyed} idle"
    return "made in free space" if record.created else "reused"
