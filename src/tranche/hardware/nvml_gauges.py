"""The driver's gauges of GPUs and GPU instances, where present: memory, power, energy, temperature and utilization."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pynvml

from tranche.core.readings import NOT_MEASURED, ActivityReading, GpuReading, SliceReading
from tranche.core.state import GpuInstance, GpuState, NodeState
from tranche.hardware.gpm import GpmReader
from tranche.hardware.nvml_errors import NVML_ERRORS

# These are no errors: a GPU lacks a gauge, or an instance was destroyed after the observation.
_ABSENT = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NO_PERMISSION,
)


class NvmlGaugeReader:
    """Reads the gauges of the GPUs of an observation. NVML must be initialised. One thread at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._gpm = GpmReader(clock)

    def read(self, node: NodeState) -> tuple[GpuReading, ...]:
        """Every GPU that answers. Missing measurements are None; a driver error is counted, and also gives None.

        Activity is that since the last reading, so the first has none.
        """
        self._gpm.keep_only(frozenset(key for gpu in node for key in _keys(gpu)))
        return tuple(self._read_gpu(gpu) for gpu in node if not gpu.lost)

    def _read_gpu(self, gpu: GpuState) -> GpuReading:
        handle = _ask(pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid)
        if handle is None:
            return GpuReading(gpu.uuid)
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        rates = None if gpu.mig_enabled else _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        return GpuReading(
            gpu_uuid=gpu.uuid,
            memory_total=None if memory is None else memory.total,
            memory_used=None if memory is None else memory.used,
            power=_scaled(_ask(pynvml.nvmlDeviceGetPowerUsage, handle), 1000),
            power_limit=_scaled(_ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1000),
            energy=_scaled(_ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle), 1000),
            temperature=_scaled(_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU), 1),
            utilization=None if rates is None else rates.gpu / 100,
            activity=NOT_MEASURED if gpu.mig_enabled else self._activity(handle, gpu, None),
            slices={instance.id: self._read_instance(handle, gpu, instance) for instance in gpu.instances},
        )

    def _read_instance(self, handle: Any, gpu: GpuState, instance: GpuInstance) -> SliceReading:
        # Its compute instances share its memory, and each reports all of it.
        uuid = next((each.uuid for each in instance.compute_instances if each.uuid), "")
        device = _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid) if uuid else None
        memory = None if device is None else _ask(pynvml.nvmlDeviceGetMemoryInfo, device)
        return SliceReading(
            memory_total=None if memory is None else memory.total,
            memory_used=None if memory is None else memory.used,
            activity=self._activity(handle, gpu, instance),
        )

    def _activity(self, handle: Any, gpu: GpuState, instance: GpuInstance | None) -> ActivityReading:
        if not _ask(self._gpm.supported, handle, gpu.uuid):
            return NOT_MEASURED
        number = None if instance is None else instance.id
        return _ask(self._gpm.activity, handle, _key(gpu, instance), number) or NOT_MEASURED


def _keys(gpu: GpuState) -> list[Hashable]:
    return [_key(gpu, None), *(_key(gpu, instance) for instance in gpu.instances)]


def _key(gpu: GpuState, instance: GpuInstance | None) -> Hashable:
    if instance is None:
        return (gpu.uuid, None)
    return (gpu.uuid, instance.id, instance.profile, instance.placement)


def _ask(query: Callable[..., Any], *arguments: Any) -> Any:
    """The driver's answer; None if it has none."""
    try:
        return query(*arguments)
    except pynvml.NVMLError as error:
        if error.value not in _ABSENT:
            NVML_ERRORS.note(error)
        return None


def _scaled(value: int | None, divisor: int) -> float | None:
    return None if value is None else value / divisor
