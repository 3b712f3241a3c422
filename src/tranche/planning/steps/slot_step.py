"""What the two steps have in common that work on the slot of one GPU instance."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tranche.core.grid import PlacedInstance, Placement
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.state import GpuInstance, GpuState, InstanceKey
from tranche.planning.steps.step import PriorState, Step


@dataclass(frozen=True, slots=True)
class SlotStep(Step, ABC):
    """A step on the instance of that profile and placement."""

    profile: ProfileName
    placement: Placement

    @property
    def key(self) -> InstanceKey:
        """The slot."""
        return InstanceKey(self.gpu_uuid, self.profile, self.placement)

    @property
    def occupant(self) -> PlacedInstance:
        """The slot on its GPU's grid."""
        return PlacedInstance(self.profile, self.placement)

    def instance(self, gpu: GpuState) -> GpuInstance | None:
        """The instance in the slot, when it has the step's profile."""
        return gpu.instance_in(self.occupant)

    def fields(self) -> dict[str, Any]:
        """`profile`, and `start` and `size` of the placement in memory slices."""
        return {"profile": str(self.profile), "start": self.placement.start, "size": self.placement.size}

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> PriorState:
        """What is in the slot, and whose it is."""
        instance = self.instance(gpu)
        return PriorState(gpu.mode) if instance is None else PriorState(gpu.mode, instance.slices, self.key in owned)


def slot_fields(data: Mapping[str, Any]) -> tuple[ProfileName, Placement]:
    """The profile and the placement that SlotStep.fields wrote."""
    return parse_profile(data["profile"]), Placement(int(data["start"]), int(data["size"]))
