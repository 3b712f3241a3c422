"""Steps on a shared device: an uncut GPU, or the instance in a slot."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from tranche.core.allocation import Slice, WholeGpu, device_uuid
from tranche.core.errors import MpsFailed
from tranche.core.grid import PlacedInstance
from tranche.core.quantity import format_memory
from tranche.core.sharing import Timeslice
from tranche.core.state import ComputeMode, DaemonState, GpuState, InstanceKey, MpsDaemon
from tranche.planning.steps.mig import place_fields, slot_fields
from tranche.planning.steps.step import PriorState, Step, TakesSharing, Taking


@dataclass(frozen=True, slots=True)
class DeviceStep(Step, ABC):
    """A step on a shared device."""

    occupant: PlacedInstance | None

    @property
    def device(self) -> WholeGpu | Slice:
        """The device as a grant."""
        return WholeGpu(self.gpu_uuid) if self.occupant is None else Slice(self.gpu_uuid, *self.occupant)

    @property
    def slot(self) -> InstanceKey | None:
        """The slot of the instance; None for the GPU itself."""
        return self.device.slot

    @property
    def place(self) -> str:
        """The device for people, within its GPU."""
        return "the GPU" if self.occupant is None else f"{self.occupant.profile} at {self.occupant.placement}"

    def device_uuid(self, gpu: GpuState) -> str:
        """The device's UUID; "" if the GPU does not show it."""
        return device_uuid(self.device, gpu)

    def daemon(self, gpu: GpuState) -> MpsDaemon | None:
        """Tranche's MPS daemon of the device."""
        return gpu.daemon_of(self.slot)

    def fields(self) -> dict[str, Any]:
        """`profile`, and `start` and `size` of the placement in memory slices, if the device is an instance."""
        return {} if self.occupant is None else place_fields(self.occupant)


def occupant_of(data: Mapping[str, Any]) -> PlacedInstance | None:
    """The instance that DeviceStep.fields wrote; None if there is none."""
    return PlacedInstance(*slot_fields(data)) if "profile" in data else None


_THERE = "daemon"
"""The value of `PriorState.extra` if the device already had its daemon."""


@dataclass(frozen=True, slots=True)
class StartMps(DeviceStep):
    """Start a daemon for the device that limits each client to `limit` bytes, whatever the client asks for.

    An uncut GPU is in compute mode EXCLUSIVE_PROCESS while the daemon lives, which refuses programs that bypass the daemon. The
    mode cannot be set while MIG is on.
    """

    summary_words: ClassVar[tuple[str, str]] = ("shared", "device")
    limit: int

    def __str__(self) -> str:
        return f"share {self.place} by MPS, at most {format_memory(self.limit)} each"

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
        """Whether a daemon with at least that limit serves the device, and no program can bypass it."""
        daemon = self.daemon(gpu)
        if daemon is None or daemon.state is not DaemonState.READY or daemon.limit < self.limit:
            return False
        # The slot may now hold another device, which that daemon does not show its clients.
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
        """Nothing: holders of the device's parts keep them, and an existing limit is not lowered."""
        return ()

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """Whether the device has its daemon."""
        return PriorState(gpu.mode, extra="" if self.daemon(gpu) is None else _THERE)

    def inverse(self, before: PriorState, now: GpuState) -> tuple[StopMps, ...]:
        """Ends the daemon. One that was there before stays: its higher limit takes nothing from anyone."""
        return () if before.extra == _THERE else (StopMps(self.gpu_uuid, self.occupant),)

    def not_shown(self, after: GpuState) -> MpsFailed:
        """The started daemon does not serve."""
        return MpsFailed(
            f"{after.label}: the MPS daemon of {self.place} has started but does not serve the device",
            hint="its log is in the state folder, under mps",
        )


@dataclass(frozen=True, slots=True)
class StopMps(DeviceStep):
    """End the daemon of the device with its servers; an uncut GPU gets its previous compute mode back."""

    summary_words: ClassVar[tuple[str, str]] = ("ended the MPS daemon of", "device")

    def __str__(self) -> str:
        return f"end the MPS daemon of {self.place}"

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step on that device."""
        return cls(gpu_uuid, occupant_of(data))

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether the device has no daemon of Tranche's, living or dead."""
        return self.daemon(gpu) is None

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU without that daemon. The compute mode comes from the daemon's own record, which plans cannot foresee."""
        gone = self.daemon(gpu)
        return gpu if gone is None else replace(gpu, daemons=tuple(each for each in gpu.daemons if each is not gone))

    @property
    def takes(self) -> tuple[Taking, ...]:
        """The sharing of the device."""
        return (TakesSharing(self.occupant),)

    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step, ...]:
        """Nothing: the next sharers of the device start a daemon."""
        return ()

    def not_shown(self, after: GpuState) -> MpsFailed:
        """Something of the daemon is still there."""
        return MpsFailed(
            f"{after.label}: the MPS daemon of {self.place} did not exit",
            hint="run nvidia-smi to see what is using the device; the daemon's log is in the state folder, under mps",
        )


@dataclass(frozen=True, slots=True)
class SetTimeslice(Step):
    """Set the timeslice of an uncut GPU; None restores what was there before Tranche set one."""

    summary_words: ClassVar[tuple[str, str]] = ("set the time slice of", "GPU")
    length: Timeslice | None

    def __str__(self) -> str:
        return "restore the time slice" if self.length is None else f"set the time slice to {self.length}"

    def fields(self) -> dict[str, Any]:
        """`timeslice`: its word; null to restore."""
        return {"timeslice": None if self.length is None else str(self.length)}

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        """The step with that length."""
        return cls(gpu_uuid, None if data["timeslice"] is None else Timeslice(data["timeslice"]))

    def in_effect(self, gpu: GpuState) -> bool:
        """Whether Tranche has set that length; for None, whether it has set none."""
        return gpu.timeslice is self.length

    def apply(self, gpu: GpuState) -> GpuState:
        """The GPU with that length."""
        return gpu if self.in_effect(gpu) else replace(gpu, timeslice=self.length)

    @property
    def takes(self) -> tuple[Taking, ...]:
        """Nothing: sharers of the GPU only get turns of another length."""
        return ()

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """The length that Tranche had set before."""
        return PriorState(gpu.mode, extra="" if gpu.timeslice is None else str(gpu.timeslice))

    def inverse(self, before: PriorState, now: GpuState) -> tuple[Step, ...]:
        """Restores the length that Tranche had set before, or the state without Tranche if it had set none."""
        step = SetTimeslice(self.gpu_uuid, Timeslice(before.extra) if before.extra else None)
        return () if step.in_effect(now) else (step,)
