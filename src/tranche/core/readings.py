"""Hardware gauges at one moment. What cannot be measured is None or missing; 0 is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ActivityReading:
    """How busy a GPU or a GPU instance was between two samples, each 0 to 1 of its own units.

    `graphics`: the share of time with any work on the compute engine. `sm`: with work on its multiprocessors. `occupancy`: of the
    warps that they can hold. `tensor`: with work on its tensor cores. `memory`: of its memory bandwidth.
    """

    graphics: float | None = None
    sm: float | None = None
    occupancy: float | None = None
    tensor: float | None = None
    memory: float | None = None


NOT_MEASURED = ActivityReading()


@dataclass(frozen=True, slots=True)
class SliceReading:
    """One GPU instance with everything in it; memory in bytes."""

    memory_total: int | None = None
    memory_used: int | None = None
    activity: ActivityReading = NOT_MEASURED


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU as a whole: memory in bytes, watts, joules since the driver was loaded, degrees Celsius.

    `utilization` is the share of time, 0 to 1, in which a kernel ran; GPUs in MIG mode report none. `slices` are by the id of the
    GPU instance.
    """

    gpu_uuid: str
    memory_total: int | None = None
    memory_used: int | None = None
    power: float | None = None
    power_limit: float | None = None
    energy: float | None = None
    temperature: float | None = None
    utilization: float | None = None
    activity: ActivityReading = NOT_MEASURED
    slices: Mapping[int, SliceReading] = field(default_factory=dict)
