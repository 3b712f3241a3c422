"""GPUs, their slices and the processes on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tranche.core.allocation import Allocation, NodeView
from tranche.core.grid import Placement
from tranche.core.reservation import Reservation
from tranche.core.state import GpuProcess, GpuState, InstanceKey
from tranche.documents.describe import timestamp
from tranche.documents.slices import (
    FreePlace,
    SliceRow,
    room_on,
    shared_gpu,
    sharing_document,
    slices_on,
    vacancies,
    whole_holders,
    why_withheld,
)
from tranche.planning.decide.reservations import reserved_on


def gpu_document(view: NodeView, gpu: GpuState, *, ledger_read: bool = True) -> dict[str, Any]:
    """One GPU with its slices; without the ledger, holders and makers are unknown, so those fields are null."""
    slices = slices_on(view, gpu)
    whole = whole_holders(view, gpu)
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "architecture": gpu.architecture,
        "pciBusId": gpu.pci_bus_id,
        "pciDeviceId": gpu.pci_device_id,
        "pciSubsystemId": gpu.pci_subsystem_id,
        "minor": gpu.minor,
        "numaNode": gpu.numa_node,
        "lost": gpu.lost,
        "memoryBytes": gpu.memory,
        "memoryFreeBytes": gpu.memory_free,
        "mig": {
            "mode": str(gpu.mode),
            "pendingMode": str(gpu.pending_mode),
            "changeNeedsReset": gpu.mode_change_needs_reset,
        },
        "memorySlices": gpu.memory_slices,
        "profilesSource": gpu.profiles_source,
        "changing": gpu.uuid in view.changing if ledger_read else None,
        "withheld": why_withheld(view, gpu) or None,
        "reserved": str(reserved_on(view, gpu.uuid) or "") or None,
        **_holders(whole),
        "sharing": sharing_document(shared_gpu(view, gpu)),
        "slices": [slice_document(each, ledger_read=ledger_read) for each in slices],
        "vacant": [vacancy_document(each) for each in vacancies(view, gpu)],
        "room": [{"profile": str(p.name), "count": n} for p, n in room_on(gpu, slices)] if gpu.mig_enabled else [],
        "processes": process_documents(gpu.processes),
    }


def _holders(allocations: Sequence[Allocation]) -> dict[str, Any]:
    """The holders of a device: `allocationId` if there is only one."""
    ids = [each.id for each in allocations]
    return {"allocationId": ids[0] if len(ids) == 1 else None, "allocationIds": ids}


def slice_document(each: SliceRow, *, ledger_read: bool = True) -> dict[str, Any]:
    """One slice; `gpuInstanceId` is null if the instance is missing or not made yet."""
    found = each.instance
    return {
        "profile": str(each.profile),
        "placement": placement_document(each.placement),
        "state": each.state,
        "owned": each.owned if ledger_read else None,
        **_holders(each.allocations),
        "sharing": sharing_document(each.shared),
        "gpuInstanceId": None if found is None else found.id,
        "profileId": None if found is None else found.profile_id,
        "memoryBytes": None if found is None else found.memory,
        "devices": []
        if found is None
        else [
            {
                "name": str(device.name),
                "uuid": device.uuid,
                "migIndex": device.mig_index,
                "computeInstanceId": device.id,
                "computeStart": device.start,
                "computeSlices": device.slices,
                "processes": process_documents(device.processes),
            }
            for device in found.compute_instances
        ],
        "processes": [] if found is None else process_documents(found.processes),
    }


def vacancy_document(each: FreePlace) -> dict[str, Any]:
    """A free place, and whether a request could get it."""
    where = None if each.placement is None else placement_document(each.placement)
    return {"placement": where, "state": str(each.availability), "why": each.why or None}


def placement_document(spot: Placement) -> dict[str, int]:
    """A placement in memory-slice units."""
    return {"start": spot.start, "size": spot.size}


def process_documents(listed: Iterable[GpuProcess]) -> list[dict[str, Any]]:
    """Processes with the memory that the driver attributes to them."""
    return [{"pid": each.pid, "name": each.name, "memoryBytes": each.memory} for each in listed]


def reservation_document(each: Reservation, view: NodeView) -> dict[str, Any]:
    """One reservation; `for` is null for maintenance."""
    return {
        "id": each.id,
        "gpuUUIDs": list(each.gpu_uuids),
        "begins": timestamp(each.begins),
        "ends": timestamp(each.ends),
        "begun": view.time >= each.begins,
        "for": each.names or None,
        "user": each.user,
    }


def key_document(key: InstanceKey) -> dict[str, Any]:
    """A slot."""
    return {
        "gpuUUID": key.gpu_uuid,
        "profile": str(key.profile),
        "placement": placement_document(key.placement),
    }
