"""What an act works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tranche.core.state import GpuState
from tranche.hardware.driver import Driver
from tranche.node.execution.timeslices import TimesliceStore
from tranche.node.mps.mps_daemons import MpsDaemonManager


@dataclass(frozen=True, slots=True)
class StepContext:
    """What an act works with. `sleep` takes seconds."""

    driver: Driver
    daemons: MpsDaemonManager
    timeslices: TimesliceStore
    sleep: Callable[[float], None]

    def observe_gpu(self, gpu_uuid: str) -> GpuState:
        """One GPU as it is now, with its daemons; GpuNotFound when it is not there."""
        return self.timeslices.on_gpu(self.daemons.on_gpu(self.driver.observe_gpu(gpu_uuid)))
