"""What the hardware says of its use; null where it cannot measure, 0 is measured."""

from __future__ import annotations

from typing import Any

from tranche.core.readings import GpuReading


def reading_document(reading: GpuReading) -> dict[str, Any]:
    """One GPU with its slices: bytes, watts, degrees Celsius, and shares of time from 0 to 1."""
    return {
        "gpuUUID": reading.gpu_uuid,
        "memoryUsedBytes": reading.memory_used,
        "busy": reading.utilization if reading.utilization is not None else reading.activity.graphics,
        "powerWatts": reading.power,
        "temperatureCelsius": reading.temperature,
        "slices": [
            {"gpuInstanceId": id, "memoryUsedBytes": each.memory_used, "busy": each.activity.graphics}
            for id, each in reading.slices.items()
        ],
    }
