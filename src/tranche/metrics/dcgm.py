"""The same values under the names, labels and units of NVIDIA's dcgm-exporter, for existing dashboards. Pure.

Power, energy, temperature and XIDs belong to a GPU and appear once. dcgm-exporter repeats them on each slice's line, so that a
sum over slices counts them seven times. What no driver measures under MIG (`DCGM_FI_DEV_GPU_UTIL`) has no value there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tranche.core.readings import ActivityReading, GpuReading, SliceReading
from tranche.core.state import GpuState
from tranche.metrics.catalogue import MetricFamily, MetricSample
from tranche.metrics.devices import MeasuredSlice, measured_gpus, measured_slices
from tranche.metrics.facts import NodeFacts

_MIB = 1 << 20
_GPU = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "Hostname")
LABELS = (*_GPU, "GPU_I_PROFILE", "GPU_I_ID", "namespace", "pod", "container")
"""`UUID` is the GPU's on a slice's line, too. A change of 2026-05 renamed `Hostname` to `hostname`; both are there."""


@dataclass(frozen=True, slots=True)
class _DcgmName:
    """A name of DCGM with ours, by which it is described, and a reading of a GPU or of a slice in DCGM's unit."""

    name: str
    ours: str
    of_gpu: Callable[[GpuReading], float | None] = lambda _: None
    of_slice: Callable[[SliceReading], float | None] = lambda _: None

    @property
    def family(self) -> MetricFamily:
        """The family; DCGM's counters have no suffix, so they are gauges here."""
        return MetricFamily(self.name, f"{self.ours} under DCGM's name and in its unit.", LABELS)


def _of_activity(name: str, ours: str, read: Callable[[ActivityReading], float | None]) -> _DcgmName:
    return _DcgmName(name, ours, of_gpu=lambda gpu: read(gpu.activity), of_slice=lambda part: read(part.activity))


NAMES = (
    _DcgmName(
        "DCGM_FI_DEV_FB_USED",
        "tranche_slice_memory_used_bytes and tranche_gpu_memory_used_bytes",
        of_gpu=lambda gpu: _mib(gpu.memory_used),
        of_slice=lambda part: _mib(part.memory_used),
    ),
    _DcgmName(
        "DCGM_FI_DEV_FB_FREE",
        "total minus used memory",
        of_gpu=lambda gpu: _mib(_less(gpu.memory_total, gpu.memory_used)),
        of_slice=lambda part: _mib(_less(part.memory_total, part.memory_used)),
    ),
    _DcgmName(
        "DCGM_FI_DEV_GPU_UTIL",
        "tranche_gpu_utilization_ratio",
        of_gpu=lambda gpu: None if gpu.utilization is None else 100 * gpu.utilization,
    ),
    _DcgmName("DCGM_FI_DEV_GPU_TEMP", "tranche_gpu_temperature_celsius", of_gpu=lambda gpu: gpu.temperature),
    _DcgmName("DCGM_FI_DEV_POWER_USAGE", "tranche_gpu_power_watts", of_gpu=lambda gpu: gpu.power),
    _DcgmName(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "tranche_gpu_energy_joules_total",
        of_gpu=lambda gpu: None if gpu.energy is None else 1000 * gpu.energy,
    ),
    _of_activity("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "tranche_slice_graphics_active_ratio", lambda each: each.graphics),
    _of_activity("DCGM_FI_PROF_SM_ACTIVE", "tranche_slice_sm_active_ratio", lambda each: each.sm),
    _of_activity("DCGM_FI_PROF_SM_OCCUPANCY", "tranche_slice_sm_occupancy_ratio", lambda each: each.occupancy),
    _of_activity("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tranche_slice_tensor_active_ratio", lambda each: each.tensor),
    _of_activity("DCGM_FI_PROF_DRAM_ACTIVE", "tranche_slice_memory_bandwidth_ratio", lambda each: each.memory),
)
"""Metrics with both a DCGM name and a reading. XIDs are separate: they are no reading."""

XID_ERRORS = _DcgmName("DCGM_FI_DEV_XID_ERRORS", "the latest XID in tranche_xid_last_time_seconds")
FAMILIES = (*(each.family for each in NAMES), XID_ERRORS.family)


def dcgm_samples(facts: NodeFacts, hostname: str) -> Iterator[MetricSample]:
    """Every value with one of those names."""
    if facts.view is None:
        return
    readings = {each.gpu_uuid: each for each in facts.readings or ()}
    xids = {} if facts.agent is None else facts.agent.xids
    for whole in measured_gpus(facts.view, readings):
        labels = {**_gpu_labels(whole.gpu, hostname), **_pod(whole.labels), "GPU_I_PROFILE": "", "GPU_I_ID": ""}
        cut = whole.gpu.mig_enabled
        for name in NAMES:
            value = None if whole.reading is None or (cut and _is_of_slices(name)) else name.of_gpu(whole.reading)
            if value is not None:
                yield MetricSample(name.family, labels, value)
        last = max(((each.last, xid) for (uuid, xid), each in xids.items() if uuid == whole.gpu.uuid), default=None)
        if last is not None:
            yield MetricSample(XID_ERRORS.family, labels, last[1])
    for part in measured_slices(facts.view, readings):
        if part.reading is not None:
            for name in NAMES:
                if (value := name.of_slice(part.reading)) is not None:
                    yield MetricSample(name.family, _slice_labels(part, hostname), value)


def _is_of_slices(name: _DcgmName) -> bool:
    """Whether it appears on the slices' lines of a cut GPU; on the GPU's line as well it would count twice."""
    return name.name.startswith(("DCGM_FI_DEV_FB_", "DCGM_FI_PROF_"))


def _slice_labels(part: MeasuredSlice, hostname: str) -> Mapping[str, str]:
    instance = part.row.instance
    assert instance is not None, "a measured slice has an instance"
    return {
        **_gpu_labels(part.gpu, hostname),
        **_pod(part.labels),
        "GPU_I_PROFILE": str(part.row.profile),
        "GPU_I_ID": str(instance.id),
    }


def _gpu_labels(gpu: GpuState, hostname: str) -> dict[str, str]:
    values = (str(gpu.index), gpu.uuid, gpu.pci_bus_id, f"nvidia{gpu.index}", gpu.name, hostname, hostname)
    return dict(zip(_GPU, values, strict=True))


def _pod(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: labels[name] for name in ("namespace", "pod", "container")}


def _mib(amount: int | None) -> float | None:
    return None if amount is None else amount / _MIB


def _less(total: int | None, used: int | None) -> int | None:
    return None if total is None or used is None else total - used
