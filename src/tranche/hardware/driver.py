"""What the rest of the product may ask of a GPU driver, and how much of the machine is visible. Nothing above knows NVML."""

from __future__ import annotations

import os
import re
from typing import Protocol

from tranche.core.grid import Placement
from tranche.core.profile import ProfileName
from tranche.core.sharing import Timeslice
from tranche.core.state import ComputeMode, DeviceVisibility, GpuState, NodeState

VARIABLE = "NVIDIA_VISIBLE_DEVICES"

_WHOLE = re.compile(r"\d+|GPU-[0-9a-fA-F-]+|none|")


def scope_of(value: str | None) -> DeviceVisibility:
    """What that value of the variable shows; a list of slices, a folder of names and `void` do not say what else exists."""
    words = [] if value is None else [word.strip() for word in value.split(",")]
    if not words or words == ["all"]:
        return DeviceVisibility.ALL
    return DeviceVisibility.GPUS if all(map(_WHOLE.fullmatch, words)) else DeviceVisibility.PARTS


class Driver(Protocol):
    """One machine's GPUs. Methods are safe to call from several threads; each raises a TrancheError if the driver refuses.

    GpuBusy: something is in use. NoRoom: the grid has no place. PermissionDenied, MigNotSupported, HardwareError: as named.
    """

    @property
    def scope(self) -> DeviceVisibility:
        """How much of the machine this process sees. Hidden devices may still exist."""
        ...

    def observe(self) -> NodeState:
        """Every GPU as it is now."""
        ...

    def observe_gpu(self, gpu_uuid: str) -> GpuState:
        """One GPU as it is now; GpuNotFound if it is absent."""
        ...

    def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        """Request a MIG mode; the next observation shows whether it is effective."""
        ...

    def set_compute_mode(self, gpu_uuid: str, mode: ComputeMode) -> None:
        """Set which processes may open an uncut GPU. The driver forgets it when it is unloaded."""
        ...

    def timeslice(self, gpu_uuid: str) -> Timeslice:
        """How long each program has the GPU in turns."""
        ...

    def set_timeslice(self, gpu_uuid: str, length: Timeslice) -> None:
        """Set how long. The driver forgets it when it is unloaded."""
        ...

    def reset_gpu(self, gpu_uuid: str) -> None:
        """Reset one GPU; nothing may use it."""
        ...

    def create_gpu_instance(self, gpu_uuid: str, profile: ProfileName, placement: Placement) -> int:
        """Create a GPU instance at a placement; returns its id."""
        ...

    def create_compute_instance(self, gpu_uuid: str, gpu_instance_id: int, name: ProfileName) -> int:
        """Create a compute instance of that name inside a GPU instance; returns its id."""
        ...

    def destroy_compute_instance(self, gpu_uuid: str, gpu_instance_id: int, compute_instance_id: int) -> None:
        """Destroy a compute instance; GpuBusy if a process uses it."""
        ...

    def destroy_gpu_instance(self, gpu_uuid: str, gpu_instance_id: int) -> None:
        """Destroy a GPU instance without compute instances; GpuBusy if something uses it."""
        ...


STATE_IN_CONTAINER = "/run/tranche/simulator/state"
"""Where a container finds the state of its simulated machine."""


def meets_this_machine(pid: int) -> bool:
    """True if this process meets real GPUs; else whether that process's container has the same simulated machine."""
    state = os.environ.get("TRANCHE_SIM_STATE")
    if not state:
        return True
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/root{STATE_IN_CONTAINER}"), os.stat(state))
    except OSError:
        return False
