"""Which devices a node advertises under which resource, by strategy, with the names that NVIDIA's device plugin uses. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tranche.core.allocation import ComputeSlice, FractionalShare, Grant, Slice, WholeGpu, memory_of
from tranche.core.sharing import Sharing
from tranche.core.state import ComputeInstance, GpuInstance, GpuState, NodeState
from tranche.kubernetes.claims.vocabulary import VGPU_RESOURCE

DOMAIN = "nvidia.com"
GPU_RESOURCE = f"{DOMAIN}/gpu"
REPLICA_MARK = "::"
"""Separates a device's UUID from a replica's number."""
_DEVICE_RESOURCE = re.compile(
    rf"{re.escape(DOMAIN)}/(?:gpu|mig-\d+g\.\d+gb(?:\.[a-z][a-z0-9]*|-[a-z][a-z0-9]*)*)(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
)


def is_device_resource(name: str) -> bool:
    """Whether a resource of that name is GPUs or slices, or replicas of them, with a possible suffix."""
    return name == VGPU_RESOURCE or _DEVICE_RESOURCE.fullmatch(name) is not None


def counted(allocatable: Mapping[str, str], resource: str) -> float:
    """How many a node's status counts of it; infinity for anything but a plain number."""
    word = allocatable.get(resource, "0")
    return int(word) if word.isdecimal() else float("inf")


class MigStrategy(StrEnum):
    """NONE: whole GPUs, cut or not. SINGLE: all slices are alike and count as GPUs. MIXED: a resource for each profile."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """What one unit of a resource stands for: a whole GPU, or one slice of it (then both `instance` and `piece` are given).

    For a shared device it is one of `replicas`, with the number `replica`, by the mechanism `sharing`; the number is None for a
    device that is not shared. `threads` is its ceiling of multiprocessors in percent, None without one; `limited` is whether the
    mechanism can and does limit its memory.
    """

    gpu: GpuState
    instance: GpuInstance | None = None
    piece: ComputeInstance | None = None
    replica: int | None = None
    replicas: int = 1
    sharing: Sharing = Sharing.TIME_SLICING
    threads: int | None = None
    limited: bool = True

    @property
    def uuid(self) -> str:
        """The UUID of the slice, or of the GPU."""
        return self.piece.uuid if self.piece is not None else self.gpu.uuid

    @property
    def id(self) -> str:
        """The device's id for the kubelet: its UUID, and the number of a replica."""
        return self.uuid if self.replica is None else f"{self.uuid}{REPLICA_MARK}{self.replica}"

    @property
    def memory(self) -> int:
        """The bytes of the whole device."""
        device = self._device
        return 0 if isinstance(device, ComputeSlice) else memory_of(device, self.gpu)

    @property
    def grant(self) -> Grant:
        """The part of the GPU that a container gets with it; a replica is an even part of its device."""
        device = self._device
        if self.replica is None or isinstance(device, ComputeSlice):
            return device
        share = max(self.memory // self.replicas, 1)
        # Ceilings of several may add up to more than the device: its compute is not booked.
        return FractionalShare(device, share, self.sharing, limit=None if self.limited else self.memory)

    @property
    def _device(self) -> WholeGpu | Slice | ComputeSlice:
        if self.instance is None or self.piece is None:
            return WholeGpu(self.gpu.uuid)
        inside = Slice(self.gpu.uuid, self.instance.profile, self.instance.placement)
        if self.instance.whole_slice is not None:
            return inside
        return ComputeSlice(inside, self.piece.name, self.piece.start, self.piece.slices)

    @property
    def index(self) -> str:
        """`3` for a GPU, `3:1` for the MIG device with index 1 on it."""
        if self.piece is None:
            return str(self.gpu.index)
        return f"{self.gpu.index}:{self.piece.mig_index}"

    @property
    def position(self) -> tuple[int, int, int, int]:
        """Orders devices by GPU, then by place on it, and replicas by number."""
        start = self.instance.placement.start if self.instance is not None else 0
        return (self.gpu.index, start, self.piece.start if self.piece is not None else 0, self.replica or 0)


@dataclass(frozen=True, slots=True)
class Resource:
    """One extended resource and its devices, by GPU and place."""

    name: str
    devices: tuple[PluginDevice, ...]


@dataclass(frozen=True, slots=True)
class Advertisement:
    """What the node advertises. `problem` says why strategy single offers nothing; `warnings` what is left out.

    `unshared` says what should be shared but cannot be.
    """

    resources: tuple[Resource, ...] = ()
    problem: str = ""
    warnings: tuple[str, ...] = ()
    unshared: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[PluginDevice, ...]:
        """Every device, of all resources."""
        return tuple(device for resource in self.resources for device in resource.devices)


def advertise(node: NodeState, strategy: MigStrategy) -> Advertisement:
    """What the node advertises under that strategy.

    A node with a GPU always has `nvidia.com/gpu`, possibly without devices, so that its count never depends on what was
    advertised before. Lost GPUs do not count.
    """
    gpus = tuple(gpu for gpu in node if not gpu.lost)
    if not gpus:
        return Advertisement()
    cut = tuple(gpu for gpu in gpus if gpu.mig_enabled)
    if strategy is MigStrategy.NONE or (strategy is MigStrategy.SINGLE and not cut):
        return Advertisement((Resource(GPU_RESOURCE, tuple(PluginDevice(gpu) for gpu in gpus)),))
    if strategy is MigStrategy.SINGLE:
        problem = single_problem(node)
        devices = () if problem else tuple(device for gpu in cut for device in slices_of(gpu))
        return Advertisement((Resource(GPU_RESOURCE, devices),), problem)
    return _mixed(gpus, cut)


def single_problem(node: NodeState) -> str:
    """Why the node's slices cannot count as GPUs under strategy single; "" when they can, or when no GPU is in MIG mode."""
    gpus = [gpu for gpu in node if not gpu.lost]
    if not any(gpu.mig_enabled for gpu in gpus):
        return ""
    if whole := [gpu for gpu in gpus if not gpu.mig_enabled]:
        return (
            f"all devices on the node must be configured with the same migEnabled value: {_named(whole)} "
            f"{'is' if len(whole) == 1 else 'are'} not in MIG mode"
        )
    if empty := [gpu for gpu in gpus if not any(True for _ in slices_of(gpu))]:
        return f"at least one MIG device is needed on each GPU in MIG mode: {_named(empty)} has none"
    names = sorted({device.piece.name for gpu in gpus for device in slices_of(gpu) if device.piece is not None})
    if len(names) > 1:
        return f"more than one MIG device type present on node: {', '.join(map(str, names))}"
    if not names[0].spans_gpu_instance:
        return f"{names[0]} slices share a GPU instance, so they have no resource name"
    return ""


def slices_of(gpu: GpuState) -> Iterator[PluginDevice]:
    """Every MIG device on the GPU, by place."""
    found = [PluginDevice(gpu, instance, piece) for instance in gpu.instances for piece in instance.compute_instances]
    yield from sorted((device for device in found if device.uuid), key=lambda device: device.position)


def _mixed(gpus: tuple[GpuState, ...], cut: tuple[GpuState, ...]) -> Advertisement:
    whole = tuple(PluginDevice(gpu) for gpu in gpus if not gpu.mig_enabled)
    by_name: dict[str, list[PluginDevice]] = {}
    nameless: dict[str, int] = {}
    for gpu in cut:
        for device in slices_of(gpu):
            assert device.piece is not None
            if device.piece.name.spans_gpu_instance:
                by_name.setdefault(f"{DOMAIN}/{device.piece.name.resource_name}", []).append(device)
            else:
                nameless[str(device.piece.name)] = nameless.get(str(device.piece.name), 0) + 1
    warnings = tuple(
        f"{count} slices {name} are not advertised: slices that share a GPU instance have no resource name"
        for name, count in sorted(nameless.items())
    )
    named = (Resource(name, tuple(devices)) for name, devices in sorted(by_name.items()))
    return Advertisement((Resource(GPU_RESOURCE, whole), *named), warnings=warnings)


def _named(gpus: list[GpuState]) -> str:
    return ", ".join(gpu.label for gpu in gpus)
