"""The order in which a node's devices are tried. The scheduler takes the first that fits, so the list is the placement policy.

Each list is the sequence of places that Tranche's own placement would choose for successive requests: each choice builds on what
the choices before it have left. So if many pods are scheduled at once, before the list is rewritten, the list is right for all of
them. Devices without room beside the choices before them come last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from tranche.core.allocation import NodeView, Slice
from tranche.core.state import InstanceKey
from tranche.kubernetes.devices.devices import NodeDevice, OfferKind
from tranche.planning.decide.options import reusable
from tranche.planning.decide.tables import PlacementTable, geometry_of, place_cost
from tranche.planning.occupancy.gpu_occupancy import GpuOccupancy, tenancy


class _Cost(NamedTuple):
    """The cost of a place, compared in this order: whether MIG mode must change, whether nothing there can be given at once, idle
    instances destroyed, the policy's cost. For a slice that does not fill a GPU, instances made for claims count only in that
    last cost.
    """

    mode: bool
    made_anew: bool
    destroyed: int
    policy: float


def in_order(group: Sequence[NodeDevice], view: NodeView) -> tuple[NodeDevice, ...]:
    """The devices of one kind, of all GPUs, in the order in which to try them."""
    if not group:
        return ()
    tenancies = {gpu.uuid: tenancy(view, gpu) for gpu in view.node}
    if group[0].kind in (OfferKind.SLICE, OfferKind.SHARED_SLICE):
        return _slices(group, tenancies)
    if group[0].kind is OfferKind.SHARED_GPU:
        return tuple(sorted(group, key=lambda each: _sharing_key(each, tenancies[each.gpu_uuid])))
    return tuple(sorted(group, key=lambda each: _whole_key(each, tenancies[each.gpu_uuid])))


def _slices(group: Sequence[NodeDevice], tenancies: Mapping[str, GpuOccupancy]) -> tuple[NodeDevice, ...]:
    shared = [
        each for each in group if _account(each, tenancies[each.gpu_uuid]) is not None and each.sharing is not None
    ]
    first = sorted(shared, key=lambda each: _fullest_first(each, tenancies[each.gpu_uuid]))
    rest = [each for each in group if each not in shared]
    by_gpu: dict[str, list[NodeDevice]] = {}
    for each in rest:
        by_gpu.setdefault(each.gpu_uuid, []).append(each)
    queues = [_sequence(devices, tenancies[uuid]) for uuid, devices in by_gpu.items()]
    # One queue for each GPU, merged: the cost of a GPU's next place depends on that GPU alone.
    heap = [(queue[0][0], queue[0][1].number, number, 0) for number, queue in enumerate(queues) if queue]
    heapify(heap)
    chosen: list[NodeDevice] = []
    while heap:
        _, _, number, place = heap[0]
        queue = queues[number]
        chosen.append(queue[place][1])
        if place + 1 == len(queue):
            heappop(heap)
        else:
            heapreplace(heap, (queue[place + 1][0], queue[place + 1][1].number, number, place + 1))
    names = {each.name for each in (*first, *chosen)}
    last = sorted((each for each in rest if each.name not in names), key=lambda each: (each.number, _start(each)))
    return (*first, *chosen, *last)


def _sequence(devices: Sequence[NodeDevice], tenancy: GpuOccupancy) -> list[tuple[_Cost, NodeDevice]]:
    """The places of one GPU in the order in which successive requests would take them, each with its cost."""
    if tenancy.whole:
        return []
    gpu = tenancy.gpu
    geometry = geometry_of(gpu.memory_slices, gpu.profiles)
    idle = {gpu.key(each) for each in tenancy.idle if reusable(each) is not None}
    free = {
        _start(each): each for each in devices if each.offered.slot in idle or not _mask(each) & tenancy.lasting_mask
    }
    taken = {each.placement.mask for each in tenancy.lasting}
    found = []
    while free:
        cost, start = min((_cost(each, taken, geometry, idle, tenancy), start) for start, each in free.items())
        device = free[start]
        found.append((cost, device))
        taken.add(_mask(device))
        free = {start: each for start, each in free.items() if not _mask(each) & _mask(device)}
    return found


def _cost(
    device: NodeDevice,
    taken: Collection[int],
    geometry: PlacementTable,
    idle: Collection[InstanceKey],
    tenancy: GpuOccupancy,
) -> _Cost:
    assert isinstance(device.offered, Slice)
    mask = _mask(device)
    there = device.offered.slot in idle
    in_the_way = () if there else tuple(each for each in tenancy.idle_owned if each.placement.mask & mask)
    mode, recut = not tenancy.gpu.mig_enabled, len(in_the_way) + (not there)
    cost = place_cost(geometry, taken, mask, recut)
    if device.kind is not OfferKind.SLICE or device.offered.placement.size == tenancy.gpu.memory_slices:
        return _Cost(mode, not there, len(in_the_way), cost)
    as_found = there and device.offered.slot not in tenancy.requested
    return _Cost(mode, not as_found, sum(not tenancy.replaceable(each) for each in in_the_way), cost)


def _sharing_key(device: NodeDevice, tenancy: GpuOccupancy) -> tuple[object, ...]:
    """Shared GPUs with the least left first, then uncut ones, last among these the GPUs that slices come to first."""
    if _account(device, tenancy) is not None:
        return (0, *_fullest_first(device, tenancy))
    return (1, tenancy.gpu.mig_enabled, len(tenancy.idle_owned), tenancy.gpu.mig_capable, -device.number)


def _whole_key(device: NodeDevice, tenancy: GpuOccupancy) -> tuple[object, ...]:
    """From the opposite end to slices and shares: uncut GPUs, without idle instances, the highest number first."""
    return (tenancy.gpu.mig_enabled, len(tenancy.idle_owned), tenancy.gpu.mig_capable, -device.number)


def _account(device: NodeDevice, tenancy: GpuOccupancy) -> int | None:
    """The bytes given away of a shared device; None while no holder has a part of it."""
    account = tenancy.shared.get(device.offered.slot)
    return None if account is None else account.memory


def _fullest_first(device: NodeDevice, tenancy: GpuOccupancy) -> tuple[int, int, int]:
    return (-(_account(device, tenancy) or 0), device.number, _start(device))


def _start(device: NodeDevice) -> int:
    return device.offered.placement.start if isinstance(device.offered, Slice) else 0


def _mask(device: NodeDevice) -> int:
    return device.offered.placement.mask if isinstance(device.offered, Slice) else -1
