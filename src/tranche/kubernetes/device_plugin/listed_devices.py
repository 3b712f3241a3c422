"""What kubelet and scheduler may count as the device plugin's, and what it may list beside what claims are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tranche.core.allocation import Grant
from tranche.kubernetes.device_plugin.device_list import ListedDevice
from tranche.kubernetes.node.advertisement_arbiter import PluginAdvertisement, counted

Grants = Mapping[str, Mapping[str, Grant]]
"""Devices by resource and id."""


STATUS_SECONDS = 11.0
"""By default, a kubelet writes what can be allocated every 10 seconds."""


@dataclass(frozen=True, slots=True)
class KubeletDevices:
    """The ids of devices that the present `run` of the kubelet may take for healthy, by resource."""

    run: object = None
    ids: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListableDevice:
    """A device that may be listed; `given` when a pod already has it."""

    device: ListedDevice
    grant: Grant
    given: bool


def listed(
    devices: Mapping[str, Sequence[ListableDevice]], *, static: bool, to_claims: Collection[str] | None
) -> Mapping[str, Sequence[ListableDevice]]:
    """The devices to list, by resource: those that pods have, and the free ones on GPUs that the device plugin gives away.

    `static` says whether the mode lets it give away any. `to_claims` are the GPUs, by UUID, on which claims are shown something
    free; None while unknown.
    """
    return {
        resource: [
            each
            for each in members
            if each.given or (static and to_claims is not None and each.grant.gpu_uuid not in to_claims)
        ]
        for resource, members in devices.items()
    }


@dataclass(frozen=True, slots=True)
class _DepartingDevices:
    """Devices of a resource, by id, that are no longer listed but may still be counted.

    `seen` says whether the node's status was seen to count them. `read_at` is since when the kubelet has read a list in which
    none is healthy, None before that.
    """

    devices: Mapping[str, Grant] = field(default_factory=dict)
    seen: bool = False
    read_at: float | None = None


@dataclass(frozen=True, slots=True)
class ListedDevices:
    """The listed and the leaving devices, by resource. `kubelet` is the run of the kubelet that received the list."""

    listed: Grants = field(default_factory=dict)
    leaving: Mapping[str, _DepartingDevices] = field(default_factory=dict)
    kubelet: object = None

    def look(
        self, listed: Grants, kubelet: KubeletDevices, allocatable: Mapping[str, str] | None, now: float
    ) -> ListedDevices:
        """The devices after a look: what is listed now, what the kubelet has read, and the node's status, None while unknown.

        A device has left when two things hold. The kubelet has read a list in which it is not healthy. And the node's status, by
        which the scheduler counts, shows no more of its resource than is listed. A status never seen to count the device may be
        older than the device's list, so it is believed only after the time in which a kubelet writes another. `now` is monotonic,
        in seconds.
        """
        found = {}
        for resource in self.listed.keys() | self.leaving.keys():
            here, before = listed.get(resource, {}), self.leaving.get(resource, _DepartingDevices())
            last = {**before.devices, **self.listed.get(resource, {})}
            gone = {name: grant for name, grant in last.items() if name not in here}
            same = kubelet.run == self.kubelet and gone.keys() <= before.devices.keys()
            more = allocatable is None or counted(allocatable, resource) > len(here)
            seen = (same and before.seen) or (more and allocatable is not None)
            read_at = (before.read_at if same else None) or now
            if any(name in gone for name in kubelet.ids.get(resource, ())):
                found[resource] = _DepartingDevices(gone, seen)
            elif gone and (more or not (seen or now - read_at >= STATUS_SECONDS)):
                found[resource] = _DepartingDevices(gone, seen, read_at)
        return ListedDevices(listed, found, kubelet.run)

    @property
    def offer(self) -> PluginAdvertisement:
        """The listed and leaving devices, in the form for the side that serves claims."""
        grants = [grant for devices in self.listed.values() for grant in devices.values()]
        grants += [grant for each in self.leaving.values() for grant in each.devices.values()]
        counts = Counter({resource: len(devices) for resource, devices in self.listed.items()})
        counts.update({resource: len(each.devices) for resource, each in self.leaving.items()})
        return PluginAdvertisement(frozenset(grants), dict(counts))
