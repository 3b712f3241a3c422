"""May a pod run on a node, as far as the node is concerned? By the scheduler's rules on taints, labels and resources. Pure.

Of rules about other pods `tranche.kubernetes.controller.spread` knows the spread; affinity to pods only the scheduler knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_HARD = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class NodeTaint:
    """What keeps pods away that do not tolerate it."""

    key: str
    effect: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Toleration:
    """What a pod tolerates. Empty `key` with `exists` tolerates everything, an empty `effect` every effect."""

    key: str = ""
    value: str = ""
    effect: str = ""
    exists: bool = False

    def tolerates(self, taint: NodeTaint) -> bool:
        """Whether it covers the taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key != taint.key:
            return not self.key and self.exists
        return self.exists or self.value == taint.value


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a label, or on the node's name where `key` is `metadata.name`. `operator` is Kubernetes' word."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether it holds; what is not understood does not."""
        there, value = self.key in labels, labels.get(self.key, "")
        match self.operator:
            case "In":
                return there and value in self.values
            case "NotIn":
                return value not in self.values if there else True
            case "Exists":
                return there
            case "DoesNotExist":
                return not there
            case "Gt" | "Lt":
                number, limit = _integer(value), _integer(self.values[0]) if len(self.values) == 1 else None
                if not there or number is None or limit is None:
                    return False
                return number > limit if self.operator == "Gt" else number < limit
            case _:
                return False


NodeTerm = tuple[Requirement, ...]
"""Requirements that hold together; an empty term holds nowhere."""


@dataclass(frozen=True, slots=True)
class PlacingRules:
    """What a pod says of nodes. `needs` are amounts by resource, CPU in thousandths. `terms` is the required node affinity, of
    which one must hold; None where there is none.
    """

    needs: Mapping[str, int] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What a node says of pods: its labels, its taints, and what is free of its resources, in the units of `needs`."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[NodeTaint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    free: Mapping[str, int] = field(default_factory=dict)


def why_not(rules: PlacingRules, node: NodeRoom) -> str:
    """What keeps the pod from the node, in words that complete `the node ...`; "" when nothing does."""
    if not node.ready:
        return "is not ready"
    cordon = (NodeTaint(UNSCHEDULABLE, "NoSchedule"),) if node.unschedulable else ()
    for taint in (*node.taints, *cordon):
        if taint.effect in _HARD and not any(each.tolerates(taint) for each in rules.tolerations):
            return f"has the taint {taint.key}, which the pod does not tolerate"
    if why := why_not_by_labels(rules, node):
        return why
    for resource, amount in rules.needs.items():
        if amount > node.free.get(resource, 0):
            return f"has too little {resource}"
    return ""


def why_not_by_labels(rules: PlacingRules, node: NodeRoom) -> str:
    """The same, as far as the pod's node selector and node affinity are concerned."""
    known = {**node.labels, "metadata.name": node.name}
    for key, value in rules.node_selector.items():
        if node.labels.get(key) != value:
            return f"has not the label {key}={value} of the pod's nodeSelector"
    if rules.terms is not None and not any(term and all(each.holds(known) for each in term) for term in rules.terms):
        return "is not one that the pod's node affinity allows"
    return ""


def _integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None
