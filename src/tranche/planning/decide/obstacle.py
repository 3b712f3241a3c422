"""Why a GPU does not serve a request: a stable reason word, a sentence, and the holders in the way."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tranche.core.state import GpuProcess, GpuState, InstanceKey


class Reason(StrEnum):
    """Stable words for programs; waiting does not remove the first five."""

    GPU_MODEL_MISMATCH = "GpuModelMismatch"
    PROFILE_NOT_SUPPORTED = "ProfileNotSupported"
    MEMORY_TOO_SMALL = "MemoryTooSmall"
    SHARING_UNAVAILABLE = "SharingUnavailable"
    POLICY = "Policy"
    QUOTA = "Quota"
    GPU_LOST = "GpuLost"
    DRIVER_ERROR = "DriverError"
    MIG_MODE_CHANGE_PENDING = "MigModeChangePending"
    LAYOUT_CHANGING = "LayoutChanging"
    WITHHELD = "Withheld"
    RESERVED = "Reserved"
    GPU_BUSY = "GpuBusy"
    FOREIGN_INSTANCES = "ForeignInstances"
    NO_ROOM = "NoRoom"
    FRAGMENTED = "Fragmented"
    QUEUED_BEHIND = "QueuedBehind"


class CommonReason(NamedTuple):
    """The common part of similar obstacles: the reason, and what is missing, as for an Obstacle."""

    reason: Reason
    missing_slices: int = 0
    missing_memory: int = 0


class Obstacle(NamedTuple):
    """What keeps one GPU from serving a request.

    `missing_slices` is the least number of memory slices that would have to become free; `missing_memory` is in bytes, for a GPU
    that is too small. Both are 0 if amounts do not matter. Allocations, processes and instances are all those in the way on this
    GPU. `alike` counts further GPUs with a similar obstacle, which are not named.
    """

    gpu_uuid: str
    gpu_index: int
    reason: Reason
    text: str
    missing_slices: int = 0
    missing_memory: int = 0
    allocation_ids: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    instances: tuple[InstanceKey, ...] = ()
    alike: int = 0

    @property
    def likeness(self) -> CommonReason:
        """Equal for obstacles that differ only in names."""
        return CommonReason(self.reason, self.missing_slices, self.missing_memory)

    @property
    def full_text(self) -> str:
        """The sentence, with the number of GPUs it covers."""
        return self.text + more_alike(self.alike)

    def __str__(self) -> str:
        return f"GPU {self.gpu_index}: {self.full_text}"


def more_alike(count: int) -> str:
    """The suffix for a text about one GPU that covers others too."""
    return f" (and {count:,} more GPU{'s' if count > 1 else ''} like it)" if count else ""


def obstacle(
    gpu: GpuState,
    reason: Reason,
    text: str,
    *,
    missing_slices: int = 0,
    missing_memory: int = 0,
    allocation_ids: tuple[str, ...] = (),
    processes: tuple[GpuProcess, ...] = (),
    instances: tuple[InstanceKey, ...] = (),
) -> Obstacle:
    """The obstacle on that GPU."""
    return Obstacle(
        gpu.uuid, gpu.index, reason, text, missing_slices, missing_memory, allocation_ids, processes, instances
    )
