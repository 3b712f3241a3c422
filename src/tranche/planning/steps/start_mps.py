"""The step that has an MPS daemon serve a device, so that several programs run on it at once, each with a limit of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tranche.core.allocation import Slice, WholeGpu
from tranche.core.errors import MpsFailed
from tranche.core.quantity import format_memory
from tranche.core.state import ComputeMode, DaemonState, GpuState, InstanceKey, MpsDaemon
from tranche.planning.steps.device_step import DeviceStep, occupant_of
from tranche.planning.steps.step import PriorState, StepSummary
from tranche.planning.steps.stop_mps import StopMps
from tranche.planning.steps.taking import Taking

_THERE = "daemon"
"""What `PriorState.extra` says when the device had its daemon already."""


@dataclass(frozen=True, slots=True)
class StartMps(DeviceStep):
    """Have a daemon serve the device and let none of its clients have more than `limit` bytes, whatever they ask for.

    A GPU that is not cut is in compute mode EXCLUSIVE_PROCESS for the daemon's life: who passes the daemon by is refused then.
    The mode cannot be set where MIG is on.
    """

    limit: int

    def __str__(self) -> str:
        return f"share {self.place} by MPS, at most {format_memory(self.limit)} each"

    @property
    def summary_words(self) -> StepSummary:
        """Counted by devices."""
        return StepSummary("shared", "device")

    def fields(self) -> dict[str, Any]:
        """The device, and `limit` in bytes."""
        return {**DeviceStep.fields(self), "limit": self.limit}

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step on that device with that limit."""
        return cls(gpu_uuid, occupant_of(data), int(data["limit"]))

    @property
    def lets_in(self) -> WholeGpu | Slice:
        """The device that the daemon serves."""
        return self.device

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether a daemon serves the device whose limit is not lower, and nobody can pass it by."""
        daemon = self.daemon(gpu)
        if daemon is None or daemon.state is not DaemonState.READY or daemon.limit < self.limit:
            return False
        # The slot may hold another device by now, which that daemon does not show its clients.
        ours = daemon.device_uuid == self.device_uuid(gpu)
        return ours and (self.occupant is not None or gpu.compute_mode is ComputeMode.EXCLUSIVE)

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU with that daemon."""
        if self.in_effect(gpu):
            return gpu
        there = self.daemon(gpu)
        limit = self.limit if there is None else max(self.limit, there.limit)
        daemon = MpsDaemon(self.slot, self.device_uuid(gpu), DaemonState.READY, limit)
        others = tuple(each for each in gpu.daemons if each is not there)
        mode = gpu.compute_mode if self.occupant is not None else ComputeMode.EXCLUSIVE
        return replace(gpu, daemons=(*others, daemon), compute_mode=mode)

    @property
    def takes(self) -> tuple[Taking, ...]:
        """Nothing: whoever has a part of the device keeps it, and a limit that is there is not lowered."""
        return ()

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """Whether the device has its daemon."""
        return PriorState(gpu.mode, extra="" if self.daemon(gpu) is None else _THERE)

    def inverse(self, before: PriorState, now: GpuState) -> tuple[StopMps, ...]:
        """No daemon. One that was there before stays: a higher limit of its takes nothing from anybody."""
        return () if before.extra == _THERE else (StopMps(self.gpu_uuid, self.occupant),)

    def not_shown(self, after: GpuState) -> MpsFailed:
        """The daemon that was started does not serve."""
        return MpsFailed(
            f"{after.label}: the MPS daemon of {self.place} was started, and does not serve it",
            hint="its log lies in the state folder, under mps",
        )
