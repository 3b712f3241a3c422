"""A cluster's nodes and GPUs, each with what is held and what is left of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tranche.core.quantity import MIB, format_memory
from tranche.kubernetes.claims.vocabulary import MODE_LABEL, DeviceType
from tranche.kubernetes.fleet.device_request import DeviceRequestOption
from tranche.kubernetes.fleet.devices import FleetDevice
from tranche.kubernetes.fleet.explanation import given_document
from tranche.kubernetes.fleet.fleet import Fleet, HeldDevice, PoolUsage
from tranche.kubernetes.fleet.objects import FleetNode

_ANYTHING = DeviceRequestOption()
COUNT_LABEL = "nvidia.com/gpu.count"
"""The label by which feature discovery says how many GPUs a node has."""


@dataclass(frozen=True, slots=True)
class FleetGpu:
    """A GPU that a node offers. `memory` is what programs can have of it, in bytes.

    `held` are what claims have of it, smallest first. `largest_free` is the largest share, in bytes, that a claim could get of it
    now. `out` are the keys of taints that all of its devices have.
    """

    node: str
    minor: int
    uuid: str
    model: str
    memory: int
    held: tuple[HeldDevice, ...] = ()
    largest_free: int = 0
    out: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """Its state, for people."""
        if self.out:
            return f"out: {', '.join(key.rpartition('/')[2] for key in self.out)}"
        if not self.held:
            return "free"
        if not self.largest_free:
            return "held"
        return f"{format_memory(self.largest_free)} free"


@dataclass(frozen=True, slots=True)
class FleetNodeSummary:
    """A node and its GPUs. `claims` is how many claims have something of it."""

    node: FleetNode
    gpus: tuple[FleetGpu, ...] = ()
    claims: int = 0
    complete: bool = True

    @property
    def status(self) -> str:
        """Kubernetes' words for whether it accepts pods."""
        ready = "Ready" if self.node.ready else "NotReady"
        return f"{ready},SchedulingDisabled" if self.node.unschedulable else ready

    @property
    def largest_free(self) -> int:
        """The largest share, in bytes, that a claim could get of it now."""
        return max((gpu.largest_free for gpu in self.gpus), default=0)

    @property
    def models(self) -> tuple[str, ...]:
        """Its GPUs by product, for people: `8 × NVIDIA A100-SXM4-40GB`; by resource where it offers none to claims."""
        if not self.gpus:
            return tuple(f"{name}: {count}" for name, count in sorted(self.node.resources.items()))
        counts = Counter(gpu.model for gpu in self.gpus)
        there = self.node.labels.get(COUNT_LABEL, "")
        if len(counts) == 1 and there.isdigit() and int(there) > len(self.gpus):
            return (
                f"{len(self.gpus)} of {int(there)} × {self.gpus[0].model}",
            )  # the node shows only those that claims have
        return tuple(f"{count} × {model}" for model, count in counts.items())

    @property
    def out(self) -> tuple[str, ...]:
        """Why some of its GPUs are not available, for people: `1 lost`."""
        counts = Counter(key.rpartition("/")[2] for gpu in self.gpus for key in gpu.out)
        return tuple(f"{count} {word}" for word, count in sorted(counts.items()))


def summaries(fleet: Fleet) -> tuple[FleetNodeSummary, ...]:
    """Every node with GPUs or a word on how to give them away, by name. For a caller who may not read nodes, every node that
    offers some.
    """
    rooms = fleet.rooms()
    nodes = fleet.nodes or tuple(FleetNode(name) for name in sorted(rooms))
    found = (_summary(node, rooms.get(node.name)) for node in nodes)
    return tuple(
        each
        for each in found
        if each.gpus or each.node.resources or MODE_LABEL in each.node.labels or not each.complete
    )


def _summary(node: FleetNode, room: PoolUsage | None) -> FleetNodeSummary:
    if room is None:
        return FleetNodeSummary(node)
    claims = len({(each.claim.namespace, each.claim.name, each.claim.uid) for each in room.holdings})
    return FleetNodeSummary(node, tuple(_gpus(room)), claims, room.pool.complete)


def _gpus(room: PoolUsage) -> Iterator[FleetGpu]:
    by_gpu: dict[str, list[FleetDevice]] = {}
    for device in room.pool.devices:
        by_gpu.setdefault(device.uuid, []).append(device)
    held: dict[str, list[HeldDevice]] = {}
    for each in room.holdings:
        held.setdefault(each.device.uuid, []).append(each)
    for uuid, devices in sorted(by_gpu.items(), key=lambda pair: (pair[1][0].minor, pair[0])):
        yield _gpu(room, uuid, devices, held)


def _gpu(
    room: PoolUsage, uuid: str, devices: Sequence[FleetDevice], held: Mapping[str, Sequence[HeldDevice]]
) -> FleetGpu:
    first = next((each for each in devices if each.type == DeviceType.WHOLE), devices[0])
    keys = [frozenset(taint.key for taint in device.taints) for device in devices]
    out = tuple(sorted(frozenset.intersection(*keys)))
    free = (
        room.memory_left(device) if device.shared else device.memory
        for device in devices
        if not device.taints and room.free(device, DeviceRequestOption(memory=1) if device.shared else _ANYTHING)
    )
    return FleetGpu(
        node=room.pool.node,
        minor=first.minor,
        uuid=uuid,
        model=first.model,
        memory=first.card_memory * MIB,
        held=tuple(sorted(held.get(uuid, ()), key=_size)),
        largest_free=max(free, default=0),
        out=out,
    )


def _size(held: HeldDevice) -> tuple[int, str, str]:
    return held.device.memory, held.device.name, held.claim.name


def node_document(summary: FleetNodeSummary) -> dict[str, Any]:
    """A node with its GPUs."""
    node = summary.node
    return {
        "name": node.name,
        "ready": node.ready,
        "unschedulable": node.unschedulable,
        "mode": None if node.mode is None else str(node.mode),
        "resources": dict(node.resources),
        "complete": summary.complete,
        "claims": summary.claims,
        "largestFreeBytes": summary.largest_free,
        "gpus": [gpu_document(each) for each in summary.gpus],
    }


def gpu_document(gpu: FleetGpu) -> dict[str, Any]:
    """A GPU of a node."""
    return {
        "node": gpu.node,
        "minor": gpu.minor,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memoryBytes": gpu.memory,
        "largestFreeBytes": gpu.largest_free,
        "taints": list(gpu.out),
        "held": [given_document(each) for each in gpu.held],
    }
