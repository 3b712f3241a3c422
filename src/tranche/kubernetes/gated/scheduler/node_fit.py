"""May a pod run on a node, as far as the node is concerned? By the scheduler's rules on taints, labels and resources. Pure.

Of rules about other pods `tranche.kubernetes.gated.scheduler.spread` knows the spread; affinity to pods only the scheduler knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tranche.kubernetes.api.node_rules import NodeTerm, Taint, Toleration, meets, unmet, untolerated

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True)
class PlacingRequirement:
    """What a pod says of nodes. `needs` are amounts by resource, CPU in thousandths. `terms` is the required node affinity, of
    which one must hold; None where there is none.
    """

    needs: Mapping[str, int] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What a node says of pods: its labels, its taints, and what is free of its resources, in the units of `needs`."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    free: Mapping[str, int] = field(default_factory=dict)


def why_not(rules: PlacingRequirement, node: NodeCapacity) -> str:
    """What keeps the pod from the node, in words that complete `the node ...`; "" when nothing does."""
    if not node.ready:
        return "is not ready"
    cordon = (Taint(UNSCHEDULABLE, "NoSchedule"),) if node.unschedulable else ()
    if taints := untolerated((*node.taints, *cordon), rules.tolerations):
        return f"has the taint {taints[0].key}, which the pod does not tolerate"
    if why := why_not_by_labels(rules, node):
        return why
    for resource, amount in rules.needs.items():
        if amount > node.free.get(resource, 0):
            return f"has too little {resource}"
    return ""


def why_not_by_labels(rules: PlacingRequirement, node: NodeCapacity) -> str:
    """The same, as far as the pod's node selector and node affinity are concerned."""
    if lacking := unmet(rules.node_selector, node.labels):
        return f"has not the label {lacking[0]} of the pod's nodeSelector"
    return "" if meets(rules.terms, node.name, node.labels) else "is not one that the pod's node affinity allows"
