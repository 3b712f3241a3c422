"""What a run tells: its events, and the sentences that people read of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tranche.core.allocation import ComputeSlice, FractionalShare, Grant, Slice, WholeGpu
from tranche.core.quantity import format_memory
from tranche.core.state import GpuProcess, GpuState
from tranche.node.held import HeldAllocation
from tranche.node.processes.keeping import RemainingProcesses
from tranche.planning.decide.allocate import Waiting
from tranche.planning.steps import Step


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


class WarningReporter(RunReporter):
    """Tells only what changes the isolation of the share; `warn` receives each sentence."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn

    def cancelled(self, error: Exception) -> None:
        """Say that the request was cancelled."""
        self._warn(str(error))

    def unlimited(self, why: str) -> None:
        """Say why."""
        self._warn(why)

    def server_ended(self, why: str) -> None:
        """Say why programs fail."""
        self._warn(why)

    def kept(self, error: Exception) -> None:
        """Say what frees the share."""
        self._warn(f"the share is not free yet; the next tranche command frees it: {error}")

    def above(self, part: FractionalShare, gpu: GpuState, used: int) -> None:
        """Say that the share's processes have more than it was given."""
        self._warn(
            f"the processes of this share use {format_memory(used)} of {gpu.full_name}, but the share has "
            f"{format_memory(part.memory)}: Tranche now counts it as unlimited"
        )

    def outside(self, process: GpuProcess, gpu: GpuState) -> None:
        """Say which program of the share's command uses which other GPU, and why that may be."""
        self._warn(
            f"{process} was started in this share but uses a device of {gpu.full_name} outside the share: it lacks the share's "
            "CUDA_VISIBLE_DEVICES, which sudo and su - drop by default"
        )


class SentenceReporter(WarningReporter):
    """Tells also how the request goes on, each thing once; `say` receives each sentence."""

    def __init__(self, say: Callable[[str], None], warn: Callable[[str], None]) -> None:
        super().__init__(warn)
        self._told, self._last = say, ""

    def waiting(self, outcome: Waiting, ahead: int, reasons: str) -> None:
        """Say why, and again only when it changes."""
        turn = f"{ahead} ahead in the queue" if ahead else "next in the queue"
        self._say(f"waiting, {turn}: {reasons}")

    def granted(self, held: HeldAllocation, gpus: Mapping[str, GpuState]) -> None:
        """Say which share it is, and how strong its fence."""
        allocation = held.allocation
        what = ", ".join(_describe(grant, gpus[grant.gpu_uuid]) for grant in allocation.grants)
        self._say(f"allocation {allocation.id}: {what}, {allocation.grants[0].walls.sentence}")

    def left(self, remains: RemainingProcesses) -> None:
        """Say which processes keep the share after `tranche run`."""
        ends = "they end" if len(remains.processes) > 1 else "it ends"
        self._say(f"{remains} keeps its share until {ends}")

    def step(self, gpu: GpuState, step: Step) -> None:
        """Say what is being done to a GPU."""
        self._say(f"{gpu.label}: {step}")

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
