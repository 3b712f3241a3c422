"""The devices of a resource as the kubelet is told of them, how one leaves the list, and what kubelet and scheduler count. Pure.

A kubelet of Kubernetes 1.36 chooses a device from the list, asks the plugin for it without holding a lock, and then reads the
device from the list that it has by that time. If the device is not in that list, the kubelet crashes. So a device leaves the list
in two steps. First the list names it as unhealthy: the kubelet no longer chooses it, and the plugin refuses a choice already
made. The list omits it only after a time in which every list on its way has arrived and every allocation has ended.

Five minutes after a plugin has gone, the kubelet forgets its resource and writes once that the count is now zero. If that one
write fails, because the API server is away, the old count stays in the node's status. The kubelet then copies it to what is
allocatable at every update, and starts pods that ask for the resource without any device. (Kubernetes 1.36: `GetCapacity` of the
kubelet's device manager, `MachineInfo` of its node status.) This lasts until a plugin serves the resource again. So resources
that a node still counts though no plugin serves them are reported as empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tranche.core.allocation import Grant
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.node.advertisement_arbiter import PluginAdvertisement
from tranche.kubernetes.node.resources import counted, is_device_resource

GRACE_SECONDS = 30.0
"""How long a leaving device stays in the list; for a device that was given away, the minimum.

Twice what a kubelet needs to read a list, to get from a choice to its question, or from the answer to its end: each takes
milliseconds, or seconds on a machine that is short of CPU.
"""


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """One device as the kubelet sees it."""

    id: str
    healthy: bool = True
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceList:
    """One resource's devices: those `offered`, and those `leaving`, each with the time since when.

    `granted` has the time when Allocate was last answered with a device, by id. Times are seconds of a monotonic clock.
    """

    offered: tuple[ListedDevice, ...] = ()
    leaving: Mapping[ListedDevice, float] = field(default_factory=dict)
    granted: Mapping[str, float] = field(default_factory=dict)

    @property
    def told(self) -> tuple[ListedDevice, ...]:
        """The devices to send to the kubelet, leaving ones as unhealthy."""
        return (*self.offered, *(replace(device, healthy=False) for device in self.leaving))

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all devices in the kubelet's list."""
        return frozenset(each.id for each in (*self.offered, *self.leaving))

    def offer(self, devices: Iterable[ListedDevice], now: float, *, known: Collection[str], kept: bool) -> DeviceList:
        """The list with these devices offered from now on.

        `known` are the ids that a kubelet may have read; other devices leave at once. With `kept`, none leaves for good yet.
        """
        offered = tuple(devices)
        here = {each.id for each in offered}
        before: Sequence[tuple[ListedDevice, float]] = (*((each, now) for each in self.offered), *self.leaving.items())
        leaving = {
            each: since
            for each, since in before
            if each.id not in here
            and each.id in known
            and (kept or now - max(since, self.granted.get(each.id, since)) < GRACE_SECONDS)
        }
        recent = {name: at for name, at in self.granted.items() if now - at < GRACE_SECONDS}
        return DeviceList(offered, leaving, recent)

    def grant(self, ids: Iterable[str], now: float) -> DeviceList:
        """The list after Allocate was answered with those devices."""
        return replace(self, granted={**self.granted, **dict.fromkeys(ids, now)})


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


SETTLE_SECONDS = 15.0
"""How long a plugin may be away, or a node's status lag behind, before a resource counts as abandoned."""


def counted_elsewhere(node: KubeNode, served: Collection[str]) -> frozenset[str]:
    """The resources of GPUs and slices that the node's status counts, except those `served`."""
    return frozenset(
        name
        for counts in (node.capacity, node.allocatable)
        for name, count in counts.items()
        if count != "0" and is_device_resource(name) and name not in served
    )


@dataclass(frozen=True, slots=True)
class AbandonedResourceTracker:
    """Since when each resource is counted but not served, in seconds of a monotonic clock."""

    since: Mapping[str, float] = field(default_factory=dict)

    def look(self, counted: Collection[str], now: float) -> AbandonedResourceTracker:
        """The tracker after a look at the node; it forgets what the node no longer counts."""
        return AbandonedResourceTracker({name: self.since.get(name, now) for name in counted})

    def spare(self, resources: Collection[str], now: float) -> AbandonedResourceTracker:
        """The tracker after another plugin was found to serve those resources; their time starts over."""
        return AbandonedResourceTracker(
            {name: now if name in resources else since for name, since in self.since.items()}
        )

    def due(self, now: float) -> frozenset[str]:
        """The resources that have been counted without being served for long enough."""
        return frozenset(name for name, since in self.since.items() if now - since >= SETTLE_SECONDS)
