"""The demo: times the same jobs on whole GPUs and in slices, then serves a mixture of requests on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from tranche.core.allocation import NodeView
from tranche.core.errors import MigNotSupported
from tranche.core.layout import Layout, LayoutSpec
from tranche.core.profile import ProfileName
from tranche.core.state import GpuState
from tranche.demo.clock import DemoClock
from tranche.demo.jobs import Command, JobRecord, JobRunner
from tranche.demo.scene import DemoTracker
from tranche.demo.schedule import Job, ideal_seconds, mixed_batch, slice_batch, whole_gpu_batch
from tranche.node.host import Host
from tranche.planning.decide.candidates import plain_profiles
from tranche.planning.layouts.named_layouts import most_instances
from tranche.planning.layouts.reconfigure import plan_layout
from tranche.planning.steps.plan import Plan


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


class DemoRunner:
    """The three parts of the demo on one machine."""

    def __init__(
        self, host: Host, clock: DemoClock, command: Command, environment: Mapping[str, str], scene: DemoTracker
    ) -> None:
        self._host = host
        self._clock = clock
        self._scene = scene
        self._runner = JobRunner(host, clock, command, environment, scene)

    def play(self, gpus: Sequence[GpuState], seed: int) -> DemoResult:
        """Run all three parts on these idle GPUs of one product.

        Raises MigNotSupported if they cannot be cut, and the error that stops a plan or a job.
        """
        profiles = plain_profiles(gpus[0])
        if not profiles:
            raise MigNotSupported(f"{gpus[0].label} ({gpus[0].name}) cannot be cut into slices")
        smallest, model = profiles[0], gpus[0].name
        per_gpu = most_instances(smallest)
        number = per_gpu * len(gpus)
        self._begin(f"Part 1 of 3: {number} jobs, one per GPU on {len(gpus)} whole GPUs", gpus)
        whole = self._batch(whole_gpu_batch(number, model), at_once=len(gpus))
        self._begin(f"Part 2 of 3: the same {number} jobs at once, in slices of {smallest.name}", gpus)
        slices, steps = self._slices(slice_batch(number, smallest.name, model), gpus, smallest.name, per_gpu)
        self._begin("Part 3 of 3: requests by memory, share and profile, served on demand", gpus)
        mixed = self._runner.run(mixed_batch(profiles, model, seed), self._tell)
        return DemoResult(self._clock.speed, tuple(gpus), smallest.name, whole, slices, steps, tuple(mixed))

    def _begin(self, title: str, gpus: Sequence[GpuState]) -> None:
        self._scene.begin(title, self._observe(gpus))

    def _observe(self, gpus: Sequence[GpuState]) -> list[GpuState]:
        return [self._host.driver.observe_gpu(gpu.uuid) for gpu in gpus]

    def _batch(self, jobs: Sequence[Job], at_once: int) -> BatchResult:
        began = self._clock.now()
        records = self._runner.run(jobs, self._counting(len(jobs), at_once))
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
        self._scene.announce(f"{len(gpus)} GPUs cut into {len(jobs)} slices in {len(plan.steps)} steps")
        records = self._runner.run(jobs, self._counting(len(jobs), len(jobs)))
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


def served_by(record: JobRecord) -> str:
    """What a job received: profile and placement, or the whole GPU."""
    grant = record.grants[0]
    return "a whole GPU" if grant.slot is None else f"{grant.slot.profile} at {grant.slot.placement}"


def how_made(record: JobRecord) -> str:
    """Where the job's instance came from."""
    if record.destroyed:
        return f"made in place of {record.destroyed} idle"
    return "made in free room" if record.created else "reused"
