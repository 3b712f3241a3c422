"""What the demo's audience sees: the GPUs with their slices, and how many jobs wait, run and are done, on a clock that runs fast.

Job threads tell it what happens; a view draws pictures of it at any moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tranche.core.allocation import Grant
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName
from tranche.core.state import GpuState, MigMode
from tranche.planning.steps import Step


class DemoClock:
    """Counts `speed` seconds for each real one."""

    def __init__(self, speed: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.speed = speed
        self._monotonic = monotonic
        self._start = monotonic()

    def now(self) -> float:
        """Seconds on this clock since it was made."""
        return (self._monotonic() - self._start) * self.speed

    def real(self, seconds: float) -> float:
        """How many real seconds these seconds of this clock take."""
        return seconds / self.speed


def clock_face(seconds: float) -> str:
    """Seconds for people: `1:27`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


class BlockState(StrEnum):
    """MAKING: being created. IDLE: present, unused. BUSY: a job runs in it."""

    MAKING = "making"
    IDLE = "idle"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Block:
    """A slice on a GPU, or the whole GPU (no profile) while a job has it."""

    placement: Placement
    profile: ProfileName | None
    state: BlockState


@dataclass(frozen=True, slots=True)
class GpuPicture:
    """One GPU: its memory slices are `units` wide, `mode` says in a word what it is or what is done to it."""

    label: str
    units: int
    mode: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything at one moment; `seconds` on the demo's clock since the part began."""

    title: str
    note: str
    seconds: float
    speed: float
    gpus: tuple[GpuPicture, ...]
    waiting: int
    running: int
    done: int


class DemoTracker:
    """Follows the demo. Several threads may report to it; `announce` receives each noteworthy event as a line."""

    def __init__(self, clock: DemoClock, announce: Callable[[str], None] = lambda line: None) -> None:
        self.announce = announce
        self._clock = clock
        self._lock = threading.Lock()
        self._title = ""
        self._note = ""
        self._began = clock.now()
        self._waiting = self._running = self._done = 0
        self._gpus: dict[str, GpuState] = {}
        self._modes: dict[str, str] = {}
        self._blocks: dict[str, dict[Placement, Block]] = {}

    def begin(self, title: str, gpus: Sequence[GpuState]) -> None:
        """A new part begins, with the GPUs as they are; nothing runs on them."""
        with self._lock:
            self._title, self._began = title, self._clock.now()
            self._waiting = self._running = self._done = 0
        self.show(gpus)
        self.announce(title)

    def show(self, gpus: Sequence[GpuState]) -> None:
        """The GPUs as they are; nothing runs on them."""
        with self._lock:
            self._note = ""
            self._gpus = {gpu.uuid: gpu for gpu in gpus}
            self._modes = {gpu.uuid: "MIG" if gpu.mig_enabled else "whole" for gpu in gpus}
            self._blocks = {
                gpu.uuid: {i.placement: Block(i.placement, i.profile, BlockState.IDLE) for i in gpu.instances}
                for gpu in gpus
            }

    def step(self, gpu: GpuState, step: Step) -> None:
        """A step of a plan begins."""
        with self._lock:
            self._note = f"{gpu.label}: {step}"
            blocks = self._blocks[gpu.uuid]
            if step.resets:
                self._modes[gpu.uuid] = "reset"
            elif step.changes_mode:
                on = step.apply(gpu).pending_mode is MigMode.ENABLED
                self._modes[gpu.uuid] = "MIG on" if on else "MIG off"
            if gone := step.destroys:
                blocks.pop(gone.placement, None)
            if made := step.creates:
                self._modes[gpu.uuid] = "MIG"
                for other in [spot for spot, block in blocks.items() if block.state is BlockState.MAKING]:
                    blocks[other] = Block(other, blocks[other].profile, BlockState.IDLE)
                blocks[made.placement] = Block(made.placement, made.profile, BlockState.MAKING)

    def asked(self) -> None:
        """A job asks for its share."""
        with self._lock:
            self._waiting += 1

    def started(self, grants: Sequence[Grant]) -> None:
        """A job has its share and runs."""
        with self._lock:
            self._waiting -= 1
            self._running += 1
            for grant in grants:
                slot = grant.slot
                spot = Placement(0, self._units(grant.gpu_uuid)) if slot is None else slot.placement
                profile = None if slot is None else slot.profile
                self._blocks[grant.gpu_uuid][spot] = Block(spot, profile, BlockState.BUSY)

    def ended(self, grants: Sequence[Grant]) -> None:
        """A job has ended; its slice stays, idle."""
        with self._lock:
            self._running -= 1
            self._done += 1
            for grant in grants:
                blocks = self._blocks[grant.gpu_uuid]
                if grant.slot is None:
                    blocks.clear()
                else:
                    spot = grant.slot.placement
                    blocks[spot] = Block(spot, grant.slot.profile, BlockState.IDLE)

    def picture(self) -> Picture:
        """The picture at this moment."""
        with self._lock:
            return Picture(
                self._title,
                self._note,
                self._clock.now() - self._began,
                self._clock.speed,
                tuple(self._picture_of(gpu) for gpu in self._gpus.values()),
                self._waiting,
                self._running,
                self._done,
            )

    def _picture_of(self, gpu: GpuState) -> GpuPicture:
        blocks = tuple(block for _, block in sorted(self._blocks[gpu.uuid].items()))
        return GpuPicture(gpu.label, self._units(gpu.uuid), self._modes[gpu.uuid], blocks)

    def _units(self, gpu_uuid: str) -> int:
        return max(1, self._gpus[gpu_uuid].memory_slices)
