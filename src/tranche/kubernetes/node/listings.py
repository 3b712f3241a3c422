"""What a kubelet lists and what the register holds, counted in the same units: devices, and replicas of devices. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tranche.core.allocation import Allocation, FractionalShare, Grant, Slice, WholeGpu, overlap
from tranche.core.keeper import PodKeeper
from tranche.core.sharing import Sharing
from tranche.kubernetes.kubelet.pod_resources import ContainerDevices
from tranche.kubernetes.node.resources import REPLICA_MARK

Unit = Grant | str
"""What a kubelet counts: a device that one container has alone, or the id of a replica."""


@dataclass(frozen=True, slots=True)
class HeldGrants:
    """What a holder has: the grants, and the kubelet's ids of the replicas that their parts stand for.

    `memory` gives the bytes of each device with parts here.
    """

    grants: tuple[Grant, ...]
    replicas: tuple[str, ...] = ()
    memory: Mapping[WholeGpu | Slice, int] = field(default_factory=dict)

    @property
    def units(self) -> frozenset[Unit]:
        """The units of it that the kubelet counts."""
        return frozenset((*self.replicas, *(grant for grant in self.grants if not isinstance(grant, FractionalShare))))

    @property
    def by_mps(self) -> bool:
        """Whether an MPS daemon serves a part of it."""
        return any(isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS for grant in self.grants)

    def collides(self, other: HeldGrants) -> bool:
        """Whether a kubelet that gives one away has taken the other back: they share a unit, or a device held alone."""
        mine, theirs = (
            [each for each in held.grants if not isinstance(each, FractionalShare)] for held in (self, other)
        )
        return not self.units.isdisjoint(other.units) or any(overlap(a, b) for a in mine for b in theirs)


def holding(allocation: Allocation) -> HeldGrants:
    """What an allocation has."""
    keeper = allocation.keeper
    return HeldGrants(allocation.grants, keeper.replicas if isinstance(keeper, PodKeeper) else ())


def device_of(device_id: str) -> str:
    """The UUID of the device behind a kubelet's id of a device or a replica."""
    return device_id.partition(REPLICA_MARK)[0]


def units_listed(
    listed: Sequence[ContainerDevices], devices: Mapping[str, Grant]
) -> dict[ContainerDevices, dict[Unit, Grant]]:
    """What the kubelet lists: each unit with its device. A unit that several containers of a pod share counts for the first.

    Leaves out devices that the node does not have: the kubelet remembers slices that were taken away.
    """
    found: dict[ContainerDevices, dict[Unit, Grant]] = {}
    seen: set[str] = set()
    for entry in listed:
        ids = [each for each in entry.device_ids if device_of(each) in devices and each not in seen]
        seen.update(entry.device_ids)
        units = {_unit(each, devices): devices[device_of(each)] for each in ids}
        if units:
            found[entry] = units
    return found


def adopted(units: Mapping[Unit, Grant], every: Iterable[str], memory: Callable[[WholeGpu | Slice], int]) -> HeldGrants:
    """What a container has if only these units are known, as the kubelet lists them.

    Into how many replicas a device was divided, and by what mechanism, is unknown. So this assumes as many as the highest number
    among `every` listed replica, so that all of them have room, and no limits. `memory` gives the bytes of a device.
    """
    alone: list[Grant] = []
    taken: dict[WholeGpu | Slice, list[str]] = {}
    for unit, device in units.items():
        if isinstance(unit, str) and isinstance(device, WholeGpu | Slice):
            taken.setdefault(device, []).append(unit)
        else:
            alone.append(device)
    counts, sizes = _counts(every), {device: memory(device) for device in taken}
    parts = [
        FractionalShare(device, max(sizes[device] // counts[device_of(ids[0])] * len(ids), 1), Sharing.TIME_SLICING)
        for device, ids in taken.items()
    ]
    return HeldGrants((*alone, *parts), tuple(each for ids in taken.values() for each in ids), sizes)


def _unit(device_id: str, devices: Mapping[str, Grant]) -> Unit:
    return device_id if REPLICA_MARK in device_id else devices[device_id]


def _counts(ids: Iterable[str]) -> dict[str, int]:
    """How many replicas each device has at least, by its UUID."""
    found: dict[str, int] = {}
    for device_id in ids:
        number = device_id.partition(REPLICA_MARK)[2]
        count = int(number) + 1 if number.isdecimal() else 1
        found[device_of(device_id)] = max(found.get(device_of(device_id), 1), count)
    return found
