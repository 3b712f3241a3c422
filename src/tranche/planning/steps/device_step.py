"""What steps have in common that work on a device which several share: a GPU that is not cut, or the instance in a slot."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tranche.core.allocation import Slice, WholeGpu
from tranche.core.devices import device_uuid
from tranche.core.grid import PlacedInstance
from tranche.core.state import GpuState, InstanceKey, MpsDaemon
from tranche.planning.steps.slot_step import slot_fields
from tranche.planning.steps.step import Step


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
