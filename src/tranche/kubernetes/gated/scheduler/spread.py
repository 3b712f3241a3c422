"""Topology spread: how unevenly similar pods may spread over zones, nodes or other domains of a node label. Pure.

Only constraints that must hold (`DoNotSchedule`) keep a pod from a node. As in the scheduler's default, all nodes that the
pod's node selector and affinity allow count, even with taints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tranche.kubernetes.api.node_rules import Requirement
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.gated.scheduler.node_fit import PlacingRequirement, why_not_by_labels


@dataclass(frozen=True, slots=True)
class SpreadRequirement:
    """At most `skew` more pods that meet all of `selector` in one domain of the node label `key` than in the emptiest."""

    key: str
    skew: int
    selector: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class SpreadPod:
    """What spread needs of a pod: its kind, and the node where it is or is about to be."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    node: str = ""


@dataclass(frozen=True, slots=True)
class SpreadState:
    """All nodes of the cluster, and the pods that run or are about to."""

    nodes: tuple[FleetNode, ...] = ()
    pods: tuple[SpreadPod, ...] = ()

    def with_pod(self, pod: SpreadPod) -> SpreadState:
        """The state with one more pod."""
        return replace(self, pods=(*self.pods, pod))

    def reasons(
        self,
        pod: SpreadPod,
        rules: Iterable[SpreadRequirement],
        placing: PlacingRequirement,
        rooms: Iterable[FleetNode],
    ) -> Mapping[str, str]:
        """Why the pod cannot go to some of these nodes, by name, in words that complete `the node ...`."""
        rooms, found = tuple(rooms), {}
        for rule in rules:
            counts, own = self._counts(pod, rule, placing), 1 if _meets(rule, pod.labels) else 0
            most = min(counts.values(), default=0) + rule.skew - own
            for room in rooms:
                domain = room.labels.get(rule.key)
                if domain is None:
                    found[room.name] = f"lacks the label {rule.key} of the pod's topology spread"
                elif counts.get(domain, 0) > most:
                    found[room.name] = (
                        f"has too many similar pods in {rule.key}={domain}; the pod's topology spread allows "
                        f"{rule.skew} more than elsewhere"
                    )
        return found

    def _counts(self, pod: SpreadPod, rule: SpreadRequirement, placing: PlacingRequirement) -> Mapping[str, int]:
        counted = [each for each in self.nodes if rule.key in each.labels and not why_not_by_labels(placing, each)]
        found = dict.fromkeys((each.labels[rule.key] for each in counted), 0)
        domains = {each.name: each.labels[rule.key] for each in counted}
        for other in self.pods:
            if other.namespace == pod.namespace and other.node in domains and _meets(rule, other.labels):
                found[domains[other.node]] += 1
        return found


def _meets(rule: SpreadRequirement, labels: Mapping[str, str]) -> bool:
    return bool(rule.selector) and all(each.holds(labels) for each in rule.selector)
