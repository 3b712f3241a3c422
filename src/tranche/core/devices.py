"""Device UUIDs, which drivers and containers take, and the grants that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tranche.core.allocation import ComputeSlice, FractionalShare, Grant, Slice, WholeGpu
from tranche.core.state import GpuInstance, GpuState, InstanceKey, NodeState


def devices(node: NodeState) -> Mapping[str, Grant]:
    """Every device of the node by its UUID: each GPU, and each compute instance.

    A compute instance that spans its GPU instance stands for the whole of it.
    """
    found: dict[str, Grant] = {}
    for gpu in node:
        found[gpu.uuid] = WholeGpu(gpu.uuid)
        for instance in gpu.instances:
            found.update(_inside(gpu, instance))
    return found


def _inside(gpu: GpuState, instance: GpuInstance) -> Mapping[str, Grant]:
    whole = Slice(gpu.uuid, instance.profile, instance.placement)
    if instance.whole_slice is not None:
        return {instance.whole_slice.uuid: whole}
    return {each.uuid: ComputeSlice(whole, each.name, each.start, each.slices) for each in instance.compute_instances}


def shareable_devices(gpu: GpuState) -> Mapping[str, InstanceKey | None]:
    """The devices of a GPU that several can share, by UUID, each with the slot of its instance; None for the GPU itself."""
    slices = {each.whole_slice.uuid: gpu.key(each) for each in gpu.instances if each.whole_slice is not None}
    return {gpu.uuid: None, **slices}


def memory_of(device: WholeGpu | Slice, gpu: GpuState) -> int:
    """The bytes that programs can have of a device together: what the driver reports, or the catalogue where it does not.

    Of an uncut GPU that is without what the driver keeps for itself. What it keeps of a slice, beyond what it leaves out of the
    slice's memory, no driver says.
    """
    if isinstance(device, WholeGpu):
        return gpu.usable_memory
    instance, profile = gpu.instance_at(device.placement), gpu.profile(device.profile)
    known = None if instance is None else instance.memory
    return known or (0 if profile is None else profile.memory or 0)


def shared_memory(grants: Iterable[Grant], node: NodeState) -> dict[WholeGpu | Slice, int]:
    """The bytes of each device that the grants are parts of."""
    parts = (grant for grant in grants if isinstance(grant, FractionalShare))
    return {part.device: memory_of(part.device, node.gpu(part.gpu_uuid)) for part in parts}


def device_uuid(grant: Grant, gpu: GpuState) -> str:
    """The UUID of the device that the grant is on, or a part of; "" when the GPU does not show it.

    `gpu` is the grant's own.
    """
    device = grant.device if isinstance(grant, FractionalShare) else grant
    if isinstance(device, WholeGpu):
        return gpu.uuid
    instance = gpu.instance_at(device.slot.placement)
    if instance is None or instance.profile != device.slot.profile:
        return ""
    return next((uuid for uuid, found in _inside(gpu, instance).items() if found == device), "")
