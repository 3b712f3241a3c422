"""Every metric of Tranche's own, as data. The page docs/reference/metrics.md is made from this. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class MetricKind(StrEnum):
    """As OpenMetrics calls them."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


UNITS = frozenset({"bytes", "celsius", "joules", "ratio", "seconds", "watts"})
"""Base units; a name ends with its own. A ratio is 0 to 1."""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric. `name` is that of OpenMetrics: a counter's samples are called `<name>_total`.

    `absent` says when a GPU, a slice or the node has no sample of it; a missing sample is the only way to say unknown. `agent`
    marks what only an agent knows, because it watches a node as long as it runs.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    absent: str = "never"
    kind: MetricKind = MetricKind.GAUGE
    agent: bool = False

    @property
    def unit(self) -> str:
        """The base unit; "" for numbers of things."""
        last = self.name.rsplit("_", 1)[-1]
        return last if last in UNITS else ""

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which samples are stored."""
        match self.kind:
            case MetricKind.GAUGE:
                return (self.name,)
            case MetricKind.COUNTER:
                return (f"{self.name}_total",)
            case MetricKind.HISTOGRAM:
                return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """The value of a histogram: counts by upper bound, each counted once, and their sum. The last bound is infinite."""

    bounds: tuple[float, ...]
    counts: Mapping[float, int] = field(default_factory=dict)
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metric; `labels` has every label of the family, "" where one does not apply."""

    family: MetricFamily
    labels: Mapping[str, str]
    value: float | HistogramValue


_COUNTER, _HISTOGRAM = MetricKind.COUNTER, MetricKind.HISTOGRAM

_POD = ("namespace", "pod", "container")
_GPU = ("gpu_uuid",)
_USE = ("gpu_uuid", *_POD)
_SLICE = ("gpu_uuid", "mig_uuid", "profile", "placement", *_POD)

_LOST = "the GPU is lost"
_NO_GAUGE = "the GPU is lost, or does not report this value"
_NO_MIG = "the GPU is lost, or does not support MIG"
_NO_MEMORY = "the slice does not exist yet, or the driver cannot read it because the instance has no compute instance"
_GPM = "the GPU is older than Hopper (such as an A100 or A30), or this is an agent's first scrape"

BUILD = MetricFamily("tranche_build_info", "Always 1; the label is Tranche's version.", ("version",))
DRIVER = MetricFamily(
    "tranche_driver_info",
    "Always 1; the labels are the version of NVIDIA's driver and the newest CUDA version that it supports.",
    ("driver_version", "cuda_version"),
    "the GPUs have not been read yet",
)
OBSERVATION_AGE = MetricFamily(
    "tranche_observation_age_seconds",
    "Age of the values. what=slices covers GPUs, slices and holders; what=readings covers the GPUs' measurements.",
    ("what",),
    "the values have never been read",
)

GPU_INFO = MetricFamily(
    "tranche_gpu_info",
    "Always 1; the labels describe the GPU. Join on gpu_uuid.",
    ("gpu_uuid", "gpu", "name", "architecture", "pci_bus_id"),
    _LOST,
)
GPU_LOST = MetricFamily(
    "tranche_gpu_lost",
    "1 if the driver lists the GPU but cannot reach it, else 0. A lost GPU's UUID can be missing.",
    ("gpu_uuid", "gpu"),
)
GPU_STATE = MetricFamily(
    "tranche_gpu_state",
    "1 for the GPU's current state: held, preparing, in_use (by a process outside Tranche), idle, or cut (into slices).",
    (*_USE, "state"),
    _LOST,
)
GPU_MIG = MetricFamily("tranche_gpu_mig_enabled", "1 in MIG mode, else 0.", _GPU, _NO_MIG)
GPU_CHANGING = MetricFamily("tranche_gpu_changing", "1 while a layout is changing the GPU, else 0.", _GPU, _LOST)
GPU_MEMORY_TOTAL = MetricFamily("tranche_gpu_memory_total_bytes", "The GPU's memory.", _GPU, _LOST)
GPU_MEMORY_USED = MetricFamily(
    "tranche_gpu_memory_used_bytes",
    "Memory in use on the whole GPU, including memory reserved by the driver; in MIG mode, the sum over its slices.",
    _USE,
    _NO_GAUGE,
)
GPU_UTILIZATION = MetricFamily(
    "tranche_gpu_utilization_ratio",
    "Fraction of the time during which a kernel was running on the GPU.",
    _USE,
    "the GPU is lost, or in MIG mode, where the driver does not measure it",
)
GPU_SM_ACTIVE = MetricFamily(
    "tranche_gpu_sm_active_ratio",
    "Activity of the GPU's multiprocessors since the last scrape.",
    _USE,
    f"the GPU is in MIG mode, or {_GPM}",
)
GPU_POWER = MetricFamily(
    "tranche_gpu_power_watts", "Power draw of the whole GPU; the driver does not measure it per slice.", _GPU, _NO_GAUGE
)
GPU_POWER_LIMIT = MetricFamily("tranche_gpu_power_limit_watts", "The GPU's power limit.", _GPU, _NO_GAUGE)
GPU_ENERGY = MetricFamily(
    "tranche_gpu_energy_joules",
    "Energy that the whole GPU has consumed since the driver was loaded.",
    _GPU,
    _NO_GAUGE,
    kind=_COUNTER,
)
GPU_TEMPERATURE = MetricFamily("tranche_gpu_temperature_celsius", "Temperature of the GPU chip.", _GPU, _NO_GAUGE)

SHARED_FENCED = MetricFamily(
    "tranche_shared_device_unavailable",
    "1 if a GPU's or slice's MPS daemon admits no clients, for example because its server hangs or is stopped; else 0.",
    ("gpu_uuid", "mig_uuid"),
    "no MPS daemon serves the device",
)
SHARES_UNLIMITED = MetricFamily(
    "tranche_shares_unlimited",
    "Number of shares with a memory limit that was exceeded or is no longer enforced.",
    ("gpu_uuid", "mig_uuid"),
    "the device has no shares with a memory limit",
)

SLICE_STATE = MetricFamily(
    "tranche_slice_state",
    "1 for the slice's current state: held, preparing (being created), missing (held, but absent), "
    "in_use (by a process outside Tranche), or idle.",
    (*_SLICE, "state"),
)
SLICE_COMPUTE = MetricFamily(
    "tranche_slice_compute_ratio",
    "The slice's fraction of its GPU's compute slices: 1/7 for a 1g. Multiply activity by this before you sum over slices.",
    _SLICE,
    "the driver does not report how many compute slices the GPU has",
)
SLICE_PROCESSES = MetricFamily(
    "tranche_slice_processes",
    "Number of processes that the driver lists in the slice. A slice held for hours without processes is probably wasted.",
    _SLICE,
    "the slice does not exist yet",
)
SLICE_MEMORY_TOTAL = MetricFamily(
    "tranche_slice_memory_total_bytes",
    "Memory of a GPU instance. Its compute instances share this memory, so it appears only once and sums are correct.",
    _SLICE,
    _NO_MEMORY,
)
SLICE_MEMORY_USED = MetricFamily(
    "tranche_slice_memory_used_bytes", "Memory in use in a GPU instance.", _SLICE, _NO_MEMORY
)
SLICE_GRAPHICS = MetricFamily(
    "tranche_slice_graphics_active_ratio",
    "Fraction of the time since the last scrape during which the GPU instance was active.",
    _SLICE,
    _GPM,
)
SLICE_SM = MetricFamily(
    "tranche_slice_sm_active_ratio",
    "Activity of the GPU instance's multiprocessors since the last scrape.",
    _SLICE,
    _GPM,
)
SLICE_OCCUPANCY = MetricFamily(
    "tranche_slice_sm_occupancy_ratio",
    "Warps on the GPU instance's multiprocessors, as a fraction of the possible maximum.",
    _SLICE,
    _GPM,
)
SLICE_TENSOR = MetricFamily(
    "tranche_slice_tensor_active_ratio",
    "Fraction of the time during which the GPU instance's tensor cores were active.",
    _SLICE,
    _GPM,
)
SLICE_BANDWIDTH = MetricFamily(
    "tranche_slice_memory_bandwidth_ratio",
    "Fraction of the GPU instance's memory bandwidth that was used.",
    _SLICE,
    _GPM,
)

HOLDER_START = MetricFamily(
    "tranche_holder_start_time_seconds",
    "Time at which the current holder got the slice or GPU, in seconds since 1970; keeper is pod, process or claim.",
    (*_SLICE, "keeper"),
    "the slice or GPU has no holder",
)
QUEUE = MetricFamily("tranche_queue_requests", "Number of requests waiting in this machine's queue.")
QUEUE_OLDEST = MetricFamily(
    "tranche_queue_oldest_wait_seconds",
    "How long the oldest request has been waiting.",
    absent="no request is waiting",
)
CHANGES = MetricFamily(
    "tranche_change_duration_seconds",
    "Duration of completed changes to GPUs. kind is layout or request. outcome is done, undone (the change failed and was "
    "rolled back) or interrupted (the process died, and another process cleaned up).",
    ("kind", "outcome"),
    kind=_HISTOGRAM,
)
NVML_ERRORS = MetricFamily(
    "tranche_nvml_errors",
    "Number of errors that the driver returned to this process, by name in nvml.h.",
    ("error",),
    "the driver has not returned this error",
    kind=_COUNTER,
)

XID_ERRORS = MetricFamily(
    "tranche_xid_errors",
    "Number of XIDs that the driver has reported since the agent started.",
    _GPU,
    kind=_COUNTER,
    agent=True,
)
XID_LAST = MetricFamily(
    "tranche_xid_last_time_seconds",
    "Time at which the driver last reported this XID, in seconds since 1970.",
    ("gpu_uuid", "xid"),
    "the driver has not reported it since the agent started",
    agent=True,
)
LAYOUT_STATE = MetricFamily(
    "tranche_layout_state",
    "1 for the current state of the node's layout. The labels repeat the node's labels for layout, state and reason.",
    ("layout", "state", "reason"),
    "the node has no layout label",
    agent=True,
)
LAYOUT_MISMATCHED = MetricFamily(
    "tranche_layout_mismatched_gpus",
    "Number of GPUs that do not match the node's layout.",
    ("layout",),
    "the node has no layout label, the layout cannot be read, or the MIG manager is off",
    agent=True,
)
COMPONENT_READY = MetricFamily(
    "tranche_component_ready", "1 if the agent's component is working, else 0.", ("component",), agent=True
)

FAMILIES: tuple[MetricFamily, ...] = tuple(each for each in list(vars().values()) if isinstance(each, MetricFamily))
"""All, in the order of this page."""
