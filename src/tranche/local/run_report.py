"""What a run tells: its events, and the sentences that people read of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tranche.core.allocation import ComputeSlice, FractionalShare, Grant, Slice, WholeGpu
from tranche.core.errors import TrancheError
from tranche.core.quantity import format_duration, format_memory
from tranche.core.state import GpuProcess, GpuState
from tranche.documents import describe
from tranche.node.held import HeldAllocation
from tranche.node.processes.keeping import RemainingProcesses
from tranche.planning.decide.allocate import Waiting
from tranche.planning.steps import Step


class RunReporter:
    """Tells how a run goes on, each thing once: `say` receives each sentence, `warn` what changes the share's isolation.

    Events while the command runs come from another thread.
    """

    def __init__(self, say: Callable[[str], None], warn: Callable[[str], None]) -> None:
        self._told, self.warn, self._last = say, warn, ""

    def waiting(self, outcome: Waiting, ahead: int, reasons: str) -> None:
        """There is no share yet; `ahead` requests are ahead, and `reasons` says why in words."""
        turn = f"{ahead} ahead in the queue" if ahead else "next in the queue"
        by = "" if outcome.starts_by is None else f"; it will start by {describe.local_time(outcome.starts_by)}"
        self._say(f"waiting, {turn}: {reasons}{by}")

    def held_up(self, error: TrancheError) -> None:
        """The request cannot be decided for now, say because the disk is full."""
        self._say(f"waiting: {error.message}")

    def step(self, gpu: GpuState, step: Step) -> None:
        """A step of the plan is about to change that GPU."""
        self._say(f"{gpu.label}: {step}")

    def granted(self, held: HeldAllocation, gpus: Mapping[str, GpuState]) -> None:
        """The share is there, and the command is about to start."""
        allocation = held.allocation
        what = ", ".join(_describe(grant, gpus[grant.gpu_uuid]) for grant in allocation.grants)
        limit = allocation.request.time_limit
        most = "" if limit is None else f", for at most {format_duration(limit)}"
        self._say(f"allocation {allocation.id}: {what}, {allocation.grants[0].walls.sentence}{most}")

    def above(self, part: FractionalShare, gpu: GpuState, used: int) -> None:
        """The share's processes together use more bytes than its part has."""
        self.warn(
            f"the processes of this share use {format_memory(used)} of {gpu.full_name}, but the share has "
            f"{format_memory(part.memory)}: Tranche now counts it as unlimited"
        )

    def outside(self, process: GpuProcess, gpu: GpuState) -> None:
        """A program of the command uses another GPU or slice than the share's."""
        self.warn(
            f"{process} was started in this share but uses a device of {gpu.full_name} outside the share: it lacks the share's "
            "CUDA_VISIBLE_DEVICES, which sudo and su - drop by default"
        )

    def left(self, remains: RemainingProcesses) -> None:
        """The command has ended; something it started keeps the share until that ends."""
        what = "keep the share until they end" if len(remains.processes) > 1 else "keeps the share until it ends"
        self._say(f"{remains} {what}")

    def kept(self, error: Exception) -> None:
        """The share cannot be given back, say because the disk is full; the next `tranche` takes it from this dead process."""
        self.warn(f"the share is not free yet; the next tranche command frees it: {error}")

    def _say(self, line: str) -> None:
        if line != self._last:
            self._told(line)
        self._last = line


def _describe(grant: Grant, gpu: GpuState) -> str:
    match grant:
        case WholeGpu():
            return f"all of {gpu.full_name}"
        case Slice():
            return f"MIG slice {grant.profile} at {grant.placement} of {gpu.full_name}"
        case ComputeSlice():
            return f"MIG slice {grant.name} in {grant.slot.profile} at {grant.slot.placement} of {gpu.full_name}"
        case FractionalShare():
            inside = "" if grant.slot is None else f"{grant.slot.profile} at {grant.slot.placement} of "
            return f"{format_memory(grant.memory)} of {inside}{gpu.full_name}"
