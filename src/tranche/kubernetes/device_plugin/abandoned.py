"""Finds resources that a node still counts though no plugin serves them, so that they can be reported as empty. Pure.

Five minutes after a plugin has gone, the kubelet forgets its resource and writes once that the count is now zero. If that one
write fails, because the API server is away, the old count stays in the node's status. The kubelet then copies it to what is
allocatable at every update, and starts pods that ask for the resource without any device. (Kubernetes 1.36: `GetCapacity` of the
kubelet's device manager, `MachineInfo` of its node status.) This lasts until a plugin serves the resource again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.node.resources import is_device_resource

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
