"""Which devices stand in one ResourceSlice: those of one kind on all GPUs, so that one write can reorder them. Pure.

From Kubernetes 1.36 on, the scheduler tries the slices of a pool in the order of their names. So names sort by what it shall try
first: slices of the least memory, then parts of GPUs, then parts of slices, and whole GPUs last. Counters stand apart, as the API
wants them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tranche.core.quantity import MIB
from tranche.kubernetes.claims.vocabulary import CapacityName, profile_label
from tranche.kubernetes.devices.devices import NodeDevice, OfferKind

_PLACES = {OfferKind.SLICE: 1, OfferKind.SHARED_GPU: 2, OfferKind.SHARED_SLICE: 3, OfferKind.WHOLE: 4}


class _OfferGroup(NamedTuple):
    """A kind of device, in the order in which the scheduler shall try the kinds. `memory` is that of a profile, in MiB."""

    place: int
    memory: int
    label: str

    @property
    def title(self) -> str:
        """What stands for it in a slice's name."""
        return f"{self.place}-{self.memory:07}-{self.label}" if self.memory else f"{self.place}-{self.label}"


def group_of(device: NodeDevice) -> _OfferGroup:
    """The group that the device is in."""
    place = _PLACES[device.kind]
    if device.profile is None:
        return _OfferGroup(place, 0, device.kind)
    # A profile whose memory no source shows is as large as its name says.
    known = device.capacity.get(CapacityName.MEMORY)
    memory = device.profile.memory_gb * 1024 if known is None else known.value // MIB
    return _OfferGroup(place, memory, profile_label(device.profile))


def grouped(devices: Iterable[NodeDevice]) -> Mapping[_OfferGroup, tuple[NodeDevice, ...]]:
    """The devices by group, in the groups' order."""
    found: dict[_OfferGroup, list[NodeDevice]] = {}
    for each in devices:
        found.setdefault(group_of(each), []).append(each)
    return {group: tuple(found[group]) for group in sorted(found)}
