"""Devices that the kubelet gave away though somebody has them whom it does not know: the next pod would get them too. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tranche.core.allocation import Allocation
from tranche.kubernetes.device_plugin.offers import forgotten
from tranche.kubernetes.node.resources import PluginDevice

INSISTED_SECONDS = 60.0
"""How long such a device is unhealthy. Its holder's request counts against the healthy ones, so it must not last."""


@dataclass(frozen=True, slots=True)
class RefusedDevices:
    """When each was refused last, by id, in seconds of a monotonic clock."""

    refused: Mapping[str, float] = field(default_factory=dict)

    def refuse(self, ids: Iterable[str], now: float) -> RefusedDevices:
        """After the kubelet was refused those."""
        return RefusedDevices({**self.refused, **dict.fromkeys(ids, now)})

    def left(
        self,
        offered: Mapping[str, Mapping[str, PluginDevice]],
        allocations: Collection[Allocation],
        run: str,
        now: float,
    ) -> RefusedDevices:
        """Those of the devices, by resource and id, that still have a holder whom that run of the kubelet does not know."""
        if not self.refused:
            return self
        devices = [device for of in offered.values() for device in of.values() if device.id in self.refused]
        held = forgotten(devices, allocations, run)
        left = {name: at for name, at in self.refused.items() if name in held and now - at < INSISTED_SECONDS}
        return self if left == self.refused else RefusedDevices(left)
