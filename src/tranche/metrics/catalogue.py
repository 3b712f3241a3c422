"""Every metric of Tranche's own. The page docs/reference/metrics.md is made from this. Pure."""

from __future__ import annotations

from tranche.metrics.family import MetricFamily, MetricKind

_GAUGE, _COUNTER, _HISTOGRAM = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM

_POD = ("namespace", "pod", "container")
_GPU = ("gpu_uuid",)
_USE = ("gpu_uuid", *_POD)
_SLICE = ("gpu_uuid", "mig_uuid", "profile", "placement", *_POD)

_LOST = "the GPU is lost"
_NO_GAUGE = "the GPU is lost, or has no such gauge"
_NO_MIG = "the GPU is lost, or cannot be cut"
_NO_MEMORY = "nothing is made there yet, or the instance has no compute instance, through which its memory is read"
_GPM = "the GPU is older than Hopper (A100 and A30 measure no slice), and at an agent's first scrape"

BUILD = MetricFamily("tranche_build_info", _GAUGE, "1; the version of Tranche.", ("version",))
DRIVER = MetricFamily(
    "tranche_driver_info",
    _GAUGE,
    "1; the versions of NVIDIA's driver and of the newest CUDA that it serves.",
    ("driver_version", "cuda_version"),
    "the GPUs were not read yet",
)
OBSERVATION_AGE = MetricFamily(
    "tranche_observation_age_seconds",
    _GAUGE,
    "How old the values are: what=slices those of GPUs, slices and holders, what=readings the gauges of the hardware.",
    ("what",),
    "they were never read",
)

GPU_INFO = MetricFamily(
    "tranche_gpu_info",
    _GAUGE,
    "1; what a GPU is. Join it by gpu_uuid.",
    ("gpu_uuid", "gpu", "name", "architecture", "pci_bus_id"),
    _LOST,
)
GPU_LOST = MetricFamily(
    "tranche_gpu_lost",
    _GAUGE,
    "1 for a GPU that the driver lists and cannot reach, else 0. The driver may not know its UUID any more.",
    ("gpu_uuid", "gpu"),
)
GPU_STATE = MetricFamily(
    "tranche_gpu_state",
    _GAUGE,
    "1 under the state of the GPU as a whole: held, preparing, in_use (by a process outside Tranche), idle, or cut.",
    (*_USE, "state"),
    _LOST,
)
GPU_MIG = MetricFamily("tranche_gpu_mig_enabled", _GAUGE, "1 in MIG mode, else 0.", _GPU, _NO_MIG)
GPU_CHANGING = MetricFamily("tranche_gpu_changing", _GAUGE, "1 while a layout re-cuts the GPU, else 0.", _GPU, _LOST)
GPU_MEMORY_TOTAL = MetricFamily("tranche_gpu_memory_total_bytes", _GAUGE, "The GPU's memory.", _GPU, _LOST)
GPU_MEMORY_USED = MetricFamily(
    "tranche_gpu_memory_used_bytes",
    _GAUGE,
    "Memory in use on the whole GPU, the driver's reserve included; in MIG mode that of all its slices together.",
    _USE,
    _NO_GAUGE,
)
GPU_UTILIZATION = MetricFamily(
    "tranche_gpu_utilization_ratio",
    _GAUGE,
    "Share of time in which a kernel ran on a GPU that is not cut.",
    _USE,
    "the GPU is lost, or in MIG mode, in which no driver measures it",
)
GPU_SM_ACTIVE = MetricFamily(
    "tranche_gpu_sm_active_ratio",
    _GAUGE,
    "How busy the multiprocessors of a GPU that is not cut were since the last scrape.",
    _USE,
    f"the GPU is in MIG mode; {_GPM}",
)
GPU_POWER = MetricFamily(
    "tranche_gpu_power_watts", _GAUGE, "What the whole GPU draws. No slice has a figure of its own.", _GPU, _NO_GAUGE
)
GPU_POWER_LIMIT = MetricFamily("tranche_gpu_power_limit_watts", _GAUGE, "The most that it may draw.", _GPU, _NO_GAUGE)
GPU_ENERGY = MetricFamily(
    "tranche_gpu_energy_joules", _COUNTER, "What the whole GPU has used since its driver was loaded.", _GPU, _NO_GAUGE
)
GPU_TEMPERATURE = MetricFamily(
    "tranche_gpu_temperature_celsius", _GAUGE, "The temperature of its die.", _GPU, _NO_GAUGE
)

SHARED_FENCED = MetricFamily(
    "tranche_shared_device_fenced",
    _GAUGE,
    "1 for a GPU or slice whose MPS daemon lets nobody more in, because its server is wedged or stopped, say; else 0.",
    ("gpu_uuid", "mig_uuid"),
    "no MPS daemon serves the device",
)
SHARES_UNLIMITED = MetricFamily(
    "tranche_shares_unlimited",
    _GAUGE,
    "How many of those who share a GPU or slice have had a limit of memory, and have none now: it is not kept, or was exceeded.",
    ("gpu_uuid", "mig_uuid"),
    "nobody shares the device with a limit of memory",
)

SLICE_STATE = MetricFamily(
    "tranche_slice_state",
    _GAUGE,
    "1 under the state of each slice: held, preparing (promised, being made), missing (held, and not there), "
    "in_use (by a process outside Tranche), or idle.",
    (*_SLICE, "state"),
)
SLICE_COMPUTE = MetricFamily(
    "tranche_slice_compute_ratio",
    _GAUGE,
    "The slice's part of its GPU's compute slices: 1/7 for a 1g. Multiply activity by it before you sum over slices.",
    _SLICE,
    "the driver does not say how many the GPU has",
)
SLICE_PROCESSES = MetricFamily(
    "tranche_slice_processes",
    _GAUGE,
    "Processes that the driver lists in the slice. A slice that is held and has none for long may be wasted.",
    _SLICE,
    "nothing is made there yet",
)
SLICE_MEMORY_TOTAL = MetricFamily(
    "tranche_slice_memory_total_bytes",
    _GAUGE,
    "Memory of a GPU instance. Compute instances inside share it: it is there once, so that sums are right.",
    _SLICE,
    _NO_MEMORY,
)
SLICE_MEMORY_USED = MetricFamily(
    "tranche_slice_memory_used_bytes", _GAUGE, "How much of it is in use.", _SLICE, _NO_MEMORY
)
SLICE_GRAPHICS = MetricFamily(
    "tranche_slice_graphics_active_ratio",
    _GAUGE,
    "Share of time since the last scrape in which the GPU instance computed anything.",
    _SLICE,
    _GPM,
)
SLICE_SM = MetricFamily("tranche_slice_sm_active_ratio", _GAUGE, "How busy its multiprocessors were.", _SLICE, _GPM)
SLICE_OCCUPANCY = MetricFamily(
    "tranche_slice_sm_occupancy_ratio", _GAUGE, "Warps on them, of those that they can hold.", _SLICE, _GPM
)
SLICE_TENSOR = MetricFamily(
    "tranche_slice_tensor_active_ratio", _GAUGE, "Share of time in which its tensor cores worked.", _SLICE, _GPM
)
SLICE_BANDWIDTH = MetricFamily(
    "tranche_slice_memory_bandwidth_ratio", _GAUGE, "The part of its memory's bandwidth that was used.", _SLICE, _GPM
)

HOLDER_START = MetricFamily(
    "tranche_holder_start_time_seconds",
    _GAUGE,
    "Since when somebody holds a slice or a GPU, in seconds since 1970; keeper is pod, process or claim.",
    (*_SLICE, "keeper"),
    "nobody holds it",
)
QUEUE = MetricFamily("tranche_queue_requests", _GAUGE, "Requests of `tranche run` that wait on this machine.")
QUEUE_OLDEST = MetricFamily(
    "tranche_queue_oldest_wait_seconds", _GAUGE, "For how long the first of them waits.", absent="nobody waits"
)
CHANGES = MetricFamily(
    "tranche_change_duration_seconds",
    _HISTOGRAM,
    "Changes of GPUs that have ended, by any process: kind is layout or request; outcome is done, undone (it failed and was "
    "put back) or interrupted (its process died, another cleared up).",
    ("kind", "outcome"),
)
NVML_ERRORS = MetricFamily(
    "tranche_nvml_errors",
    _COUNTER,
    "Errors with which the driver answered this process, by their names in nvml.h.",
    ("error",),
    "there was none of that name",
)

XID_ERRORS = MetricFamily(
    "tranche_xid_errors", _COUNTER, "XID errors that the driver reported since the agent's start.", _GPU, agent=True
)
XID_LAST = MetricFamily(
    "tranche_xid_last_time_seconds",
    _GAUGE,
    "When an XID was last reported, in seconds since 1970.",
    ("gpu_uuid", "xid"),
    "it was not reported since the agent's start",
    agent=True,
)
LAYOUT_STATE = MetricFamily(
    "tranche_layout_state",
    _GAUGE,
    "1 under the state of the node's layout: the labels nvidia.com/mig.config and .state, and the reason word.",
    ("layout", "state", "reason"),
    "the node's label asks for no layout",
    agent=True,
)
LAYOUT_MISMATCHED = MetricFamily(
    "tranche_layout_mismatched_gpus",
    _GAUGE,
    "GPUs that are not cut as the node's layout says.",
    ("layout",),
    "the label asks for no layout, or its layout cannot be read, or the MIG manager is off",
    agent=True,
)
COMPONENT_READY = MetricFamily(
    "tranche_component_ready",
    _GAUGE,
    "1 for a part of the agent that does its work, else 0.",
    ("component",),
    agent=True,
)

FAMILIES: tuple[MetricFamily, ...] = tuple(each for each in list(vars().values()) if isinstance(each, MetricFamily))
"""All, in the order of this page."""
