"""Whether a node admits a pod, by the scheduler's rules on taints, labels and resources, and by topology spread. Pure.

Only constraints that must hold (`DoNotSchedule`) keep a pod from a node. As in the scheduler's default, all nodes that the
pod's node selector and affinity allow count, even with taints. Only the scheduler knows affinity between pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tranche.kubernetes.api.node_rules import Taint, meets, unmet, untolerated
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod, SpreadRequirement

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


def why_not(pod: ClusterPod, node: FleetNode) -> str:
    """Why the pod cannot run on the node, in words that complete `the node ...`; "" when it can."""
    if not node.ready:
        return "is not ready"
    cordon = (Taint(UNSCHEDULABLE, "NoSchedule"),) if node.unschedulable else ()
    if taints := untolerated((*node.taints, *cordon), pod.tolerations):
        return f"has the taint {taints[0].key}, which the pod does not tolerate"
    if why := _why_not_by_labels(pod, node):
        return why
    for resource, amount in pod.needs.items():
        if amount > node.allocatable.get(resource, 0):
            return f"has too little {resource}"
    return ""


def _why_not_by_labels(pod: ClusterPod, node: FleetNode) -> str:
    """The same, by the pod's node selector and node affinity only."""
    if lacking := unmet(pod.node_selector, node.labels):
        return f"lacks the label {lacking[0]} of the pod's nodeSelector"
    return "" if meets(pod.terms, node.name, node.labels) else "does not match the pod's node affinity"


@dataclass(frozen=True, slots=True)
class SpreadState:
    """Topology spread: all nodes of the cluster, and the pods that run or are about to, each with its node."""

    nodes: tuple[FleetNode, ...] = ()
    pods: tuple[ClusterPod, ...] = ()

    def with_pod(self, pod: ClusterPod) -> SpreadState:
        """The state with one more pod."""
        return replace(self, pods=(*self.pods, pod))

    def reasons(self, pod: ClusterPod, rooms: Iterable[FleetNode]) -> Mapping[str, str]:
        """Why the pod cannot go to some of these nodes, by name, in words that complete `the node ...`."""
        rooms, found = tuple(rooms), {}
        for rule in pod.spread:
            counts, own = self._counts(pod, rule), 1 if _meets(rule, pod.labels) else 0
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

    def _counts(self, pod: ClusterPod, rule: SpreadRequirement) -> Mapping[str, int]:
        counted = [each for each in self.nodes if rule.key in each.labels and not _why_not_by_labels(pod, each)]
        found = dict.fromkeys((each.labels[rule.key] for each in counted), 0)
        domains = {each.name: each.labels[rule.key] for each in counted}
        for other in self.pods:
            if other.namespace == pod.namespace and other.node in domains and _meets(rule, other.labels):
                found[domains[other.node]] += 1
        return found


def _meets(rule: SpreadRequirement, labels: Mapping[str, str]) -> bool:
    return bool(rule.selector) and all(each.holds(labels) for each in rule.selector)
