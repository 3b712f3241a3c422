"""Whether a node admits a pod, by the scheduler's rules on taints, labels and resources. Pure.

`tranche.kubernetes.gated.scheduler.spread` handles topology spread. Only the scheduler knows affinity between pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tranche.kubernetes.api.node_rules import NodeTerm, Taint, Toleration, meets, unmet, untolerated
from tranche.kubernetes.fleet.objects import FleetNode

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True)
class PlacingRequirement:
    """What a pod requires of nodes. `needs` are amounts by resource, CPU in thousandths. `terms` is the required node affinity:
    one term must hold; None without any.
    """

    needs: Mapping[str, int] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()


def why_not(rules: PlacingRequirement, node: FleetNode) -> str:
    """Why the pod cannot run on the node, in words that complete `the node ...`; "" when it can."""
    if not node.ready:
        return "is not ready"
    cordon = (Taint(UNSCHEDULABLE, "NoSchedule"),) if node.unschedulable else ()
    if taints := untolerated((*node.taints, *cordon), rules.tolerations):
        return f"has the taint {taints[0].key}, which the pod does not tolerate"
    if why := why_not_by_labels(rules, node):
        return why
    for resource, amount in rules.needs.items():
        if amount > node.allocatable.get(resource, 0):
            return f"has too little {resource}"
    return ""


def why_not_by_labels(rules: PlacingRequirement, node: FleetNode) -> str:
    """The same, by the pod's node selector and node affinity only."""
    if lacking := unmet(rules.node_selector, node.labels):
        return f"lacks the label {lacking[0]} of the pod's nodeSelector"
    return "" if meets(rules.terms, node.name, node.labels) else "does not match the pod's node affinity"
