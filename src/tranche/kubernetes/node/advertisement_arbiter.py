"""The two ways in which a node offers its GPUs, told to each other: neither begins before the other was seen to have ended.

The node's mode says which way a GPU shall go. Both ways hear of a new mode at the same time, and neither the kubelet nor the API
server hears of anything at once. So each way says here what may still be counted as its own, and heeds what the other says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tranche.core.allocation import Grant
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.resources import is_device_resource


@dataclass(frozen=True, slots=True)
class PluginAdvertisement:
    """What kubelet and scheduler may count as the device plugin's.

    `grants` are the devices that are listed, given or free, and those that were, until kubelet and node show that they know.
    `counts` says how many these are, by resource.
    """

    grants: frozenset[Grant] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)

    def strangers(self, allocatable: Mapping[str, str]) -> frozenset[str]:
        """The resources of which a node's status counts devices that this agent did not list: those of the agent before, or of
        another plugin.
        """
        return frozenset(
            name
            for name in allocatable
            if is_device_resource(name) and counted(allocatable, name) > self.counts.get(name, 0)
        )


def counted(allocatable: Mapping[str, str], resource: str) -> float:
    """How many a node's status counts of it; more than any node has for what is no plain number."""
    word = allocatable.get(resource, "0")
    return int(word) if word.isdecimal() else float("inf")


class AdvertisementState:
    """What each way may be taken to offer. To be used from one event loop: between a look at the other way and the own word there
    must be no await.
    """

    def __init__(self) -> None:
        """`plugin` is the device plugin's word; `claims` are the GPUs, by UUID, of which claims are shown something free, or
        will be in a moment. Neither is known at first.
        """
        self.plugin: LatestValue[PluginAdvertisement] = LatestValue()
        self.claims: LatestValue[frozenset[str]] = LatestValue()
