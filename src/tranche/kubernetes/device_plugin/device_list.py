"""The list of one resource's devices as the kubelet receives it, and how a device leaves it. Pure.

A kubelet of Kubernetes 1.36 chooses a device from the list, asks the plugin for it without holding a lock, and then reads the
device from the list that it has by that time. If the device is not in that list, the kubelet crashes. So a device leaves the list
in two steps. First the list names it as unhealthy: the kubelet no longer chooses it, and the plugin refuses a choice already
made. The list omits it only after a time in which every list on its way has arrived and every allocation has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
