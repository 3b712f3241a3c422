"""The driver's gauges of GPUs and GPU instances, where present: memory, power, energy, temperature and utilization.

GPM, the performance counters of Hopper and later, says how busy a GPU or a GPU instance was between two samples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml

from tranche.core.readings import NOT_MEASURED, ActivityReading, GpuReading, SliceReading
from tranche.core.state import GpuInstance, GpuState, NodeState
from tranche.hardware.nvml_errors import NVML_ERRORS

_METRICS = {
    "graphics": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "sm": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "tensor": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "memory": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
LEAST_SECONDS = 0.1
"""NVML refreshes its counters no more often (its documents)."""


@dataclass(slots=True)
class _Track:
    """The last sample of one GPU or instance, when it was taken, and what it showed against the one before."""

    sample: Any
    at: float
    activity: ActivityReading = NOT_MEASURED


class GpmReader:
    """Takes samples and keeps the last of each; `clock` is monotonic, in seconds. One thread at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tracks: dict[Hashable, _Track] = {}
        self._supported: dict[str, bool] = {}

    def supported(self, handle: Any, gpu_uuid: str) -> bool:
        """Whether the GPU has the counters; asked once per GPU."""
        if gpu_uuid not in self._supported:
            try:
                answer = pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice
            except pynvml.NVMLError as error:
                if error.value not in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                    raise
                answer = 0
            self._supported[gpu_uuid] = bool(answer)
        return self._supported[gpu_uuid]

    def activity(self, handle: Any, key: Hashable, gpu_instance_id: int | None) -> ActivityReading:
        """The activity since the last call with that key, which names one life of one instance; nothing at the first call."""
        now = self._clock()
        track = self._tracks.get(key)
        if track is not None and now - track.at < LEAST_SECONDS:
            return track.activity
        sample = pynvml.nvmlGpmSampleAlloc()
        try:
            if gpu_instance_id is None:
                pynvml.nvmlGpmSampleGet(handle, sample)
            else:
                pynvml.nvmlGpmMigSampleGet(handle, gpu_instance_id, sample)
            activity = NOT_MEASURED if track is None else _between(track.sample, sample)
        except pynvml.NVMLError as error:
            _free(sample)
            self._drop(key)
            if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                return NOT_MEASURED  # the instance is gone, or its number has been reused
            raise
        self._drop(key)
        self._tracks[key] = _Track(sample, now, activity)
        return activity

    def keep_only(self, keys: frozenset[Hashable]) -> None:
        """Free all other samples."""
        for key in self._tracks.keys() - keys:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        if (track := self._tracks.pop(key, None)) is not None:
            _free(track.sample)


def _between(first: Any, second: Any) -> ActivityReading:
    get = pynvml.c_nvmlGpmMetricsGet_t()
    get.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    get.numMetrics = len(_METRICS)
    get.sample1, get.sample2 = first, second
    for place, metric in enumerate(_METRICS.values()):
        get.metrics[place].metricId = metric
    pynvml.nvmlGpmMetricsGet(get)
    found = {}
    for place, name in enumerate(_METRICS):
        metric = get.metrics[place]
        measured = metric.nvmlReturn == pynvml.NVML_SUCCESS and metric.value == metric.value  # a driver may give NaN
        found[name] = metric.value / 100 if measured else None
    return ActivityReading(**found)


def _free(sample: Any) -> None:
    with suppress(pynvml.NVMLError):
        pynvml.nvmlGpmSampleFree(sample)


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
        return GpuReading(
            gpu_uuid=gpu.uuid,
            memory_total=None if memory is None else memory.total,
            memory_used=None if memory is None else memory.used,
            power=_scaled(_ask(pynvml.nvmlDeviceGetPowerUsage, handle), 1000),
            power_limit=_scaled(_ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1000),
            energy=_scaled(_ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle), 1000),
            temperature=_scaled(_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU), 1),
            utilization=None if gpu.mig_enabled else _utilization(handle),
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


def utilization_of(gpu_uuid: str) -> float | None:
    """The share of time, 0 to 1, in which a kernel ran on an uncut GPU in the last second or less; None if not measured."""
    handle = _ask(pynvml.nvmlDeviceGetHandleByUUID, gpu_uuid)
    return None if handle is None else _utilization(handle)


def _utilization(handle: Any) -> float | None:
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return None if rates is None else rates.gpu / 100


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
