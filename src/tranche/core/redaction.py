"""Which parts of a document may leave the machine: a shape names each field to keep, and drops the rest.

It keeps identities, numbers, states and Tranche's own words. It drops free text by people or programs: command lines,
environments, messages that quote them. Of a command it keeps the program's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

Shape: TypeAlias = "Callable[[Any], Any] | Mapping[str, Shape]"
"""A function of a value, or the kept fields of an object with a shape for each; both apply to each item of a list."""

_LONGEST = 256
_PROGRAM = re.compile(r"[\w.+-]+")


def reduced(value: Any, shape: Shape) -> Any:
    """What the shape keeps of a JSON value; None if only one of shape and value is an object."""
    if isinstance(value, list):
        return [reduced(each, shape) for each in value]
    if isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            return None
        return {key: reduced(value[key], inner) for key, inner in shape.items() if key in value}
    return None if isinstance(value, Mapping) else shape(value)


def kept(value: Any) -> Any:
    """The value itself; cuts texts longer than any of Tranche's own."""
    return value[:_LONGEST] if isinstance(value, str) else value


def program(value: Any) -> Any:
    """The program's name from a command line, and how many words follow."""
    words = value.split() if isinstance(value, str) else []
    if not words:
        return value if value is None else ""
    name = words[0].rpartition("/")[2]
    shown = name if _PROGRAM.fullmatch(name) else "(a command)"
    return shown if len(words) == 1 else f"{shown} ({len(words) - 1} more words)"


def fields(*names: str, **shapes: Shape) -> Mapping[str, Shape]:
    """A shape that keeps these fields as they are, and others by their own shapes."""
    return {**dict.fromkeys(names, kept), **shapes}


PLACEMENT = fields("start", "size")
SLOT = fields("gpuUUID", "profile", placement=PLACEMENT)
PROCESS = fields("pid", "memoryBytes", name=program)
REQUEST = fields(
    "gpus", "gpu", "gpuMemoryBytes", "migProfile", "count", "computePercent", "isolation",
    "gpuModel", "timeLimitSeconds",
)  # fmt: skip
GRANT = fields(
    "gpuUUID", "mechanism", "isolation", "profile", "memoryBytes", "computePercent", "memoryLimitBytes", "unlimited",
    placement=PLACEMENT, computeInstance=fields("name", "start", "size"),
    walls=fields("memory", "compute", "faults", "bandwidth"),
)  # fmt: skip
KEEPER = fields(
    "kind",
    "pid",
    "started",
    "resource",
    "namespace",
    "name",
    "container",
    "uid",
    "kubelet",
    "lingers",
    "forgotten",
    "begun",
)
STEP = fields("action", "gpu", "enabled", "profile", "start", "size", "slices")
BEFORE = fields("mode", "slices", "owned")
EVENT_DATA = fields(
    "planId", "waiterId", "pid", "reason", "failedGpu", "bootId", "gpuUUID", "sharing",
    "gpuPercent", "memoryBytes", "shares", "timeLimitSeconds", "gpuHours", "weight",
    "reservationId", "gpuUUIDs", "begins", "ends", step=STEP, request=REQUEST, grants=GRANT, keeper=KEEPER,
)  # fmt: skip

_MIG = fields("mode", "pendingMode", "changeNeedsReset")
_DEVICE = fields(
    "name", "uuid", "migIndex", "computeInstanceId", "computeStart", "computeSlices", processes=PROCESS
)  # fmt: skip
_SHARING = fields(
    "mechanism", "memoryGivenBytes", "memoryLeftBytes", "unavailable", walls=fields("memory", "compute", "faults", "bandwidth")
)  # fmt: skip
_SLICE = fields(
    "profile", "state", "owned", "allocationId", "allocationIds", "gpuInstanceId", "profileId", "memoryBytes",
    placement=PLACEMENT, sharing=_SHARING, devices=_DEVICE, processes=PROCESS,
)  # fmt: skip
_GPU = fields(
    "index", "uuid", "name", "architecture", "pciBusId", "pciDeviceId", "pciSubsystemId", "minor", "numaNode", "lost",
    "memoryBytes", "memoryFreeBytes", "memorySlices", "profilesSource", "changing", "allocationId", "allocationIds",
    mig=_MIG, sharing=_SHARING, slices=_SLICE, room=fields("profile", "count"), processes=PROCESS,
    vacant=fields("state", placement=PLACEMENT),
)  # fmt: skip
_ALLOCATION = fields(
    "id", "phase", "created", "pid", "unavailable", "idleSeconds",
    request=REQUEST, grants=GRANT, keeper=KEEPER, command=program, missingInstances=SLOT,
)  # fmt: skip
_OBSTACLE = fields(
    "gpuIndex", "gpuUUID", "reason", "missingSlices", "missingMemoryBytes", "allocationIds", "moreGpus",
    processes=PROCESS, instances=SLOT,
)  # fmt: skip
_WAITER = fields("position", "id", "created", "pid", request=REQUEST, command=program, obstacles=_OBSTACLE)

SHAPES: Mapping[str, Shape] = {
    "Version": fields(
        "apiVersion", "kind", "version", "commit", "simulatorVersion", "pythonVersion", "driverVersion", "nvmlVersion"
    ),
    "GpuList": fields("apiVersion", "kind", "driverVersion", "nvmlVersion", "ledgerRead", gpus=_GPU),
    "AllocationList": fields("apiVersion", "kind", allocations=_ALLOCATION, waiters=_WAITER),
    "EventList": fields(
        "apiVersion", "kind",
        events=fields("position", "time", "type", "gpuUUID", "allocationId", "cause", data=EVENT_DATA),
    ),
    "Checkup": fields("apiVersion", "kind", "healthy", findings=fields("check", "status", "gpu")),
    "ClusterCheckup": fields(
        "apiVersion", "kind", "healthy", findings=fields("check", "status", "nodes", "pods")
    ),
}  # fmt: skip
"""The parts to keep of documents that commands print, by kind."""

LOG_LINE = fields(
    "time", "level", "logger", "message", "component", "reason", "node", "resource", "count", "devices", "event_reason",
    "object", "health_port", "gpu", "gpu_uuid", "xid", "layout", "state", "seconds", "restarts", "strategy",
)  # fmt: skip
"""The parts to keep of a line of the agent's log. Its message is the same at each occurrence, and so quotes nothing."""


# The kubelet writes each line of a container as: time, stream, whether it is complete, and the line.
_KUBELET = re.compile(r"^\S+ (?:stdout|stderr) [FP] ")


def log_extract(lines: Iterable[str]) -> str:
    """The reduced lines, and at the end a count of those dropped, such as the lines of a traceback."""
    found, dropped = [], 0
    for line in lines:
        try:
            record = json.loads(_KUBELET.sub("", line, count=1))
        except ValueError:
            record = None
        if isinstance(record, dict) and "message" in record and str(record.get("logger")).startswith("tranche"):
            found.append(json.dumps(reduced(record, LOG_LINE)))
        elif line.strip():
            dropped += 1
    if dropped:
        found.append(json.dumps({"message": "lines left out", "count": dropped}))
    return "".join(f"{each}\n" for each in found)
