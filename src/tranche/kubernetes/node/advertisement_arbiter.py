"""The two ways in which a node offers its GPUs, known to each other: neither begins before it has seen the other end.

The node's mode says which way a GPU should go. Both ways hear of a new mode at the same time, and the kubelet and the API server
hear of everything late. So each way says here what may still count as its own, and respects what the other says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tranche.core.allocation import Grant
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.resources import counted, is_device_resource


@dataclass(frozen=True, slots=True)
class PluginAdvertisement:
    """What kubelet and scheduler may count as the device plugin's.

    `grants` are the listed devices, given or free, and formerly listed ones until kubelet and node show that they know. `counts`
    says how many these are, by resource.
    """

    grants: frozenset[Grant] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)

    def strangers(self, allocatable: Mapping[str, str]) -> frozenset[str]:
        """The resources for which a node's status counts devices that this agent did not list: those of a former agent, or of
        another plugin.
        """
        return frozenset(
            name
            for name in allocatable
            if is_device_resource(name) and counted(allocatable, name) > self.counts.get(name, 0)
        )


class AdvertisementState:
    """What each way may count as offered. To be used from one event loop, without an await between reading the other way's state
    and writing one's own.
    """

    def __init__(self) -> None:
        """`plugin` is what the device plugin says; `claims` are the GPUs, by UUID, of which claims see something free, or will in
        a moment. Neither is known at first.
        """
        self.plugin: LatestValue[PluginAdvertisement] = LatestValue()
        self.claims: LatestValue[frozenset[str]] = LatestValue()
