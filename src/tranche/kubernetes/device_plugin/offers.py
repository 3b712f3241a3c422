"""Which devices may be offered as a resource: free ones, and those that a pod was given as this resource; and which of
the free ones a container had best get. Pure.

A kubelet counts what it gave away by resource. It would give a device away again if a list had one that was given away as another
resource, that a command on the machine holds, or that a forgotten pod still uses. If the kubelet gave away such a device all the
same, the next pod would get it too: the device is refused for a while. On a shared device, the replicas that pods have stay
offered, and as many free ones as there is room for. A GPU that was cut on demand, and left so when the node's mode became static,
is no whole GPU to a container.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import TypeVar

from tranche.core.allocation import Allocation, FractionalShare, Grant, NodeView, overlap
from tranche.core.keeper import PodKeeper
from tranche.core.state import GpuState
from tranche.kubernetes.device_plugin.settings import SharedPolicy
from tranche.kubernetes.node.resources import PluginDevice


def offered(
    devices: Iterable[PluginDevice], resource: str, allocations: Collection[Allocation]
) -> tuple[PluginDevice, ...]:
    """The resource's devices that may be offered, in their order."""
    shared: dict[str, list[PluginDevice]] = {}
    found: set[str] = set()
    devices = tuple(devices)
    for device in devices:
        if device.replica is not None:
            shared.setdefault(device.uuid, []).append(device)
        elif held_otherwise(device.grant, resource, allocations) is None:
            found.add(device.id)
    for replicas in shared.values():
        found.update(_offered_replicas(replicas, resource, allocations))
    return tuple(device for device in devices if device.id in found)


def held_otherwise(grant: Grant, resource: str, allocations: Iterable[Allocation]) -> Allocation | None:
    """The allocation that keeps the device from being offered as that resource; None when it may be offered."""
    for allocation in allocations:
        as_this = _as(resource, allocation)
        if any(overlap(grant, held) and not (as_this and held == grant) for held in allocation.grants):
            return allocation
    return None


def free(devices: Iterable[PluginDevice], allocations: Collection[Allocation], run: str = "") -> list[PluginDevice]:
    """The devices that are free by the register; with the present `run` of the kubelet also those whose holder it knew.

    A kubelet that offers a device that it gave away has taken it back, which the register may not know yet. A kubelet that lost
    its checkpoint offers devices that it does not know to be given away; these must not be given.
    """
    standing = [each for each in allocations if not (run and knew(each, run))]
    return [device for device in devices if not holders(device, standing)]


def holders(device: PluginDevice, allocations: Iterable[Allocation]) -> list[Allocation]:
    """The allocations that have the device, or something that excludes it."""
    return [each for each in allocations if any(_excludes(grant, device, each) for grant in each.grants)]


def _forgotten(devices: Iterable[PluginDevice], allocations: Collection[Allocation], run: str) -> frozenset[str]:
    """The ids of held devices with a holder that this run of the kubelet does not know."""
    return frozenset(
        device.id for device in devices if any(not knew(each, run) for each in holders(device, allocations))
    )


def knew(allocation: Allocation, run: str) -> bool:
    """Whether that run of the kubelet counts, or counted, the pod's devices as given away."""
    keeper = allocation.keeper
    return isinstance(keeper, PodKeeper) and keeper.kubelet == run and not keeper.lingers


def _excludes(held: Grant, device: PluginDevice, allocation: Allocation) -> bool:
    mine = device.grant
    if (
        isinstance(held, FractionalShare)
        and isinstance(mine, FractionalShare)
        and (held.device, held.sharing) == (mine.device, mine.sharing)
    ):
        return isinstance(allocation.keeper, PodKeeper) and device.id in allocation.keeper.replicas
    return overlap(held, mine)


def given_as(device: PluginDevice, resource: str, allocations: Iterable[Allocation]) -> bool:
    """Whether a pod has the device and was given it as that resource."""
    return any(
        device.grant in allocation.grants if device.replica is None else device.id in allocation.keeper.replicas
        for allocation in allocations
        if isinstance(allocation.keeper, PodKeeper) and _as(resource, allocation)
    )


def _offered_replicas(replicas: Sequence[PluginDevice], resource: str, allocations: Iterable[Allocation]) -> set[str]:
    """The ids of the replicas, all of one device, that may be offered."""
    share = replicas[0].grant
    assert isinstance(share, FractionalShare)
    room = replicas[0].memory
    ours: set[str] = set()
    others: set[str] = set()
    for allocation in allocations:
        for held in allocation.grants:
            if isinstance(held, FractionalShare) and (held.device, held.sharing) == (share.device, share.sharing):
                room -= held.memory
            elif overlap(share, held):
                return set()
        if isinstance(allocation.keeper, PodKeeper):
            (ours if _as(resource, allocation) else others).update(allocation.keeper.replicas)
    ids = [device.id for device in replicas]
    free = [device_id for device_id in ids if device_id not in ours | others]
    return {*(device_id for device_id in ids if device_id in ours), *free[: max(room // share.memory, 0)]}


def _as(resource: str, allocation: Allocation) -> bool:
    """Whether a kubelet counts the allocation's devices as given away under that resource."""
    keeper = allocation.keeper
    return isinstance(keeper, PodKeeper) and keeper.resource == resource and not keeper.lingers


INSISTED_SECONDS = 60.0
"""How long such a device is unhealthy. Its holder's request counts against the healthy ones, so it must not last."""


@dataclass(frozen=True, slots=True)
class RefusedDevices:
    """When each device was last refused, by id, in seconds of a monotonic clock."""

    refused: Mapping[str, float] = field(default_factory=dict)

    def refuse(self, ids: Iterable[str], now: float) -> RefusedDevices:
        """The record after the kubelet was refused those."""
        return RefusedDevices({**self.refused, **dict.fromkeys(ids, now)})

    def left(
        self,
        offered: Mapping[str, Mapping[str, PluginDevice]],
        allocations: Collection[Allocation],
        run: str,
        now: float,
    ) -> RefusedDevices:
        """The devices, by resource and id, that still have a holder unknown to this run of the kubelet."""
        if not self.refused:
            return self
        devices = [device for of in offered.values() for device in of.values() if device.id in self.refused]
        held = _forgotten(devices, allocations, run)
        left = {name: at for name, at in self.refused.items() if name in held and now - at < INSISTED_SECONDS}
        return self if left == self.refused else RefusedDevices(left)


def why_still_cut(view: NodeView, gpu: GpuState) -> str:
    """Why a GPU that no layout has cut is not given away as a whole; "" when it may be.

    A program that gets a GPU in MIG mode uses one slice of it, whichever comes first.
    """
    ours = sum(gpu.key(each) in view.owned for each in gpu.instances)
    if not gpu.mig_enabled or not ours:
        return ""
    slices = f"{ours} slice{'s' if ours > 1 else ''}"
    return f"it still has {slices} created on demand; to offer the whole GPU, label the node nvidia.com/mig.config=all-disabled"


Links = Mapping[frozenset[str], int]
"""How well two GPUs are linked, by the UUIDs of both; more is better."""

_MOST_SETS = 5_000

Group = TypeVar("Group")


def preferred(
    available: Sequence[PluginDevice],
    required: Sequence[str],
    size: int,
    links: Links,
    policy: SharedPolicy = SharedPolicy.DISTRIBUTED,
) -> tuple[str, ...]:
    """`size` ids of the available devices, the best for a container, including the required ones; fewer when not enough are
    available.

    Slices are packed: on as few GPUs as possible, and on those with the least left, so that other GPUs stay empty and can be cut
    differently. Whole GPUs are aligned: the set with the best links among its members, then among the GPUs that it leaves.
    Replicas come from as few devices as possible, of the least or the most used, as the policy says.

    Drops required devices that are not available: the kubelet takes the answer as advice.
    """
    devices = sorted({device.id: device for device in available}.values(), key=lambda device: device.position)
    must = [device for device in devices if device.id in set(required)][:size]
    free = [device for device in devices if device.id not in set(required)]
    count = min(size - len(must), len(free))
    if count <= 0:
        chosen: list[PluginDevice] = []
    elif any(device.replica is not None for device in devices):
        chosen = _shared(free, must, count, policy)
    elif all(device.piece is None for device in devices):
        chosen = _aligned(free, must, count, links)
    else:
        chosen = _packed(free, must, count)
    return tuple(device.id for device in (*must, *chosen))


def _shared(
    free: Sequence[PluginDevice], must: Sequence[PluginDevice], count: int, policy: SharedPolicy
) -> list[PluginDevice]:
    by_device: dict[str, list[PluginDevice]] = {}
    for device in free:
        by_device.setdefault(device.uuid, []).append(device)
    entered = {device.uuid for device in must}
    used = {uuid: 1 - Fraction(len(left), left[0].replicas) for uuid, left in by_device.items()}
    sign = -1 if policy is SharedPolicy.PACKED else 1

    def cost(uuid: str, wanted: int) -> tuple[object, ...]:
        room = len(by_device[uuid])
        short = room < wanted
        return (uuid not in entered, short, -room if short else 0, sign * used[uuid], by_device[uuid][0].position)

    return _cheapest(by_device, count, cost)


def _packed(free: Sequence[PluginDevice], must: Sequence[PluginDevice], count: int) -> list[PluginDevice]:
    by_gpu: dict[int, list[PluginDevice]] = {}
    for device in free:
        by_gpu.setdefault(device.gpu.index, []).append(device)
    entered = {device.gpu.index for device in must}

    def cost(index: int, wanted: int) -> tuple[object, ...]:
        room = len(by_gpu[index])
        return (index not in entered, room < wanted, room if room >= wanted else -room, index)

    return _cheapest(by_gpu, count, cost)


def _cheapest(
    groups: dict[Group, list[PluginDevice]], count: int, cost: Callable[[Group, int], tuple[object, ...]]
) -> list[PluginDevice]:
    """So many devices, group by group. The cost of a group depends on how many are still wanted."""
    chosen: list[PluginDevice] = []
    while (wanted := count - len(chosen)) > 0:
        costs = {group: cost(group, wanted) for group in groups}
        chosen += groups.pop(min(costs, key=costs.__getitem__))[:wanted]
    return chosen


def _aligned(
    free: Sequence[PluginDevice], must: Sequence[PluginDevice], count: int, links: Links
) -> list[PluginDevice]:
    if comb(len(free), count) > _MOST_SETS:
        return _aligned_step_by_step(free, must, count, links)

    def worth(chosen: tuple[PluginDevice, ...]) -> tuple[int, int]:
        rest = [device for device in free if device not in chosen]
        return (_together((*must, *chosen), links), _together(rest, links))

    # max() keeps the first of equals: the one with the lowest indexes.
    best: tuple[PluginDevice, ...] = max(combinations(free, count), key=worth)
    return list(best)


def _aligned_step_by_step(
    free: Sequence[PluginDevice], must: Sequence[PluginDevice], count: int, links: Links
) -> list[PluginDevice]:
    """For machines with so many GPUs that trying all sets would take too long."""
    chosen: list[PluginDevice] = []
    while len(chosen) < count:
        left = [device for device in free if device not in chosen]
        chosen.append(max(left, key=lambda device: _together((*must, *chosen, device), links)))
    return chosen


def _together(devices: Sequence[PluginDevice], links: Links) -> int:
    """The sum over all pairs."""
    return sum(links.get(frozenset((a.gpu.uuid, b.gpu.uuid)), 0) for a, b in combinations(devices, 2))
