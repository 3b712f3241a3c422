"""Topology spread: how unevenly pods of a kind may lie over zones, nodes or whatever else a label of nodes names. Pure.

Only constraints that must hold (`DoNotSchedule`) keep a pod from a node. As the scheduler does by default, nodes count that the
pod's node selector and affinity allow, whatever their taints are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tranche.kubernetes.api.node_rules import Requirement
from tranche.kubernetes.gated.scheduler.node_fit import NodeCapacity, PlacingRequirement, why_not_by_labels


@dataclass(frozen=True, slots=True)
class SpreadRequirement:
    """At most `skew` more pods that meet all of `selector` in one domain of the node label `key` than in the emptiest."""

    key: str
    skew: int
    selector: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class SpreadPod:
    """A pod as far as its kind matters: where it is, or is about to be."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    node: str = ""


@dataclass(frozen=True, slots=True)
class SpreadState:
    """All nodes of the cluster, and its pods that run or are about to."""

    nodes: tuple[NodeCapacity, ...] = ()
    pods: tuple[SpreadPod, ...] = ()

    def with_pod(self, pod: SpreadPod) -> SpreadState:
        """With one more."""
        return replace(self, pods=(*self.pods, pod))

    def reasons(
        self,
        pod: SpreadPod,
        rules: Iterable[SpreadRequirement],
        placing: PlacingRequirement,
        rooms: Iterable[NodeCapacity],
    ) -> Mapping[str, str]:
        """What keeps the pod from those of these nodes where something does, in words that complete `the node ...`."""
        rooms, found = tuple(rooms), {}
        for rule in rules:
            counts, own = self._counts(pod, rule, placing), 1 if _meets(rule, pod.labels) else 0
            most = min(counts.values(), default=0) + rule.skew - own
            for room in rooms:
                domain = room.labels.get(rule.key)
                if domain is None:
                    found[room.name] = f"has no label {rule.key}, over which the pod is to be spread"
                elif counts.get(domain, 0) > most:
                    found[room.name] = (
                        f"has too many pods of its kind in {rule.key}={domain}: its topology spread allows {rule.skew} more"
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
