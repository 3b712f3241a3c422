"""The steps on a device that several share: a GPU that is not cut, or the instance in a slot."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tranche.core.allocation import Slice, WholeGpu, device_uuid
from tranche.core.errors import MpsFailed
from tranche.core.grid import PlacedInstance
from tranche.core.quantity import format_memory
from tranche.core.sharing import Timeslice
from tranche.core.state import ComputeMode, DaemonState, GpuState, InstanceKey, MpsDaemon
from tranche.planning.steps.mig import slot_fields
from tranche.planning.steps.step import PriorState, Step, StepSummary, TakesSharing, Taking


@dataclass(frozen=True, slots=True)
class DeviceStep(Step, ABC):
    """A step on that device."""

    occupant: PlacedInstance | None

    @property
    def changes_cut(self) -> bool:
        """A daemon changes no instance."""
        return False

    @property
    def device(self) -> WholeGpu | Slice:
        """The device, as grants name it."""
        if self.occupant is None:
            return WholeGpu(self.gpu_uuid)
        return Slice(self.gpu_uuid, self.occupant.profile, self.occupant.placement)

    @property
    def slot(self) -> InstanceKey | None:
        """The slot of the instance; None for the GPU itself."""
        return self.device.slot

    @property
    def place(self) -> str:
        """The device for people, within its GPU."""
        return "the GPU" if self.occupant is None else f"{self.occupant.profile} at {self.occupant.placement}"

    def device_uuid(self, gpu: GpuState) -> str:
        """The device's UUID; "" when the GPU does not show it."""
        return device_uuid(self.device, gpu)

    def daemon(self, gpu: GpuState) -> MpsDaemon | None:
        """Tranche's MPS daemon of the device."""
        return gpu.daemon_of(self.slot)

    def fields(self) -> dict[str, Any]:
        """`profile`, and `start` and `size` of the placement in memory slices, where the device is an instance."""
        if self.occupant is None:
            return {}
        placement = self.occupant.placement
        return {"profile": str(self.occupant.profile), "start": placement.start, "size": placement.size}


def occupant_of(data: Mapping[str, Any]) -> PlacedInstance | None:
    """The instance that DeviceStep.fields wrote; None where it wrote none."""
    return PlacedInstance(*slot_fields(data)) if "profile" in data else None


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


@dataclass(frozen=True, slots=True)
class StopMps(DeviceStep):
    """End the daemon of the device with its servers; a GPU that is not cut gets the compute mode back that it had before."""

    def __str__(self) -> str:
        return f"end the MPS daemon of {self.place}"

    @property
    def summary_words(self) -> StepSummary:
        """Counted by devices."""
        return StepSummary("ended the MPS daemon of", "device")

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step on that device."""
        return cls(gpu_uuid, occupant_of(data))

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether the device has no daemon of Tranche's, living or dead."""
        return self.daemon(gpu) is None

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU without that daemon. The compute mode is what the daemon's own record says, which no plan foresees."""
        gone = self.daemon(gpu)
        return gpu if gone is None else replace(gpu, daemons=tuple(each for each in gpu.daemons if each is not gone))

    @property
    def takes(self) -> tuple[Taking, ...]:
        """The sharing of the device."""
        return (TakesSharing(self.occupant),)

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """Nothing beside the mode."""
        return PriorState(gpu.mode)

    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step, ...]:
        """Nothing: whoever shares the device next has a daemon started."""
        return ()

    def not_shown(self, after: GpuState) -> MpsFailed:
        """Something of the daemon is still there."""
        return MpsFailed(
            f"{after.label}: the MPS daemon of {self.place} does not end",
            hint="see what holds it: nvidia-smi; its log lies in the state folder, under mps",
        )


@dataclass(frozen=True, slots=True)
class SetTimeslice(Step):
    """Set the length of time slices on a GPU that is not cut; None puts back what was there before Tranche set one."""

    length: Timeslice | None

    def __str__(self) -> str:
        return "put the time slice back" if self.length is None else f"set the time slice to {self.length}"

    @property
    def summary_words(self) -> StepSummary:
        """Counted by GPUs."""
        return StepSummary("set the time slice of", "GPU")

    def fields(self) -> dict[str, Any]:
        """`timeslice`: its word; null to put it back."""
        return {"timeslice": None if self.length is None else str(self.length)}

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step with that length."""
        return cls(gpu_uuid, None if data["timeslice"] is None else Timeslice(data["timeslice"]))

    @property
    def changes_cut(self) -> bool:
        """It does not."""
        return False

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether Tranche has set that length; for None, whether it has set none."""
        return gpu.timeslice is self.length

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU with that length."""
        return gpu if self.in_effect(gpu) else replace(gpu, timeslice=self.length)

    @property
    def takes(self) -> tuple[Taking, ...]:
        """Nothing: whoever shares the GPU has turns of another length."""
        return ()

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """The length that Tranche had set before."""
        return PriorState(gpu.mode, extra="" if gpu.timeslice is None else str(gpu.timeslice))

    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step, ...]:
        """The length that Tranche had set before; what was there without Tranche, where it had set none."""
        step = SetTimeslice(self.gpu_uuid, Timeslice(before.extra) if before.extra else None)
        return () if step.in_effect(now) else (step,)
