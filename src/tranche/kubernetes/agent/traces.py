"""What agents write on a node object, and how to take it back when they leave the cluster for good."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.vocabulary import FREE_LABELS, KEEP_ANNOTATION
from tranche.kubernetes.feature_labels.labels import changed_labels
from tranche.kubernetes.mig_manager import operands
from tranche.kubernetes.mig_manager.drain import CORDON_ANNOTATION
from tranche.kubernetes.mig_manager.exclusion import CLAIM_PREFIX
from tranche.kubernetes.mig_manager.state import CONDITION_TYPE, NOTHING_ASKED

MIG_MANAGER, FEATURE_LABELS = "mig-manager", "feature-labels"
"""The parts of an agent that another program may replace on the node object; no other reports what claims can have."""

_ANNOTATION_PREFIXES = (CLAIM_PREFIX, "tranche.dev/")


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """How to take back the traces: parts of a metadata patch, a condition to remove, and whether to uncordon."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    condition: str | None = None
    uncordon: bool = False

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations or self.condition or self.uncordon)


def is_marked(node: KubeNode) -> bool:
    """Whether the node has a mark that only agents write."""
    return bool(_annotations(node) or _free_labels(node)) or node.condition(CONDITION_TYPE) is not None


def cleaning(node: KubeNode, parts: Collection[str]) -> CleanupPlan:
    """How to take back what these parts of an agent wrote on the node.

    What people set stays, such as the wanted layout and the room to keep. Paused operands run again; a cordon goes if it
    was an agent's.
    """
    labels = changed_labels(node.labels, {}, 0.0) if FEATURE_LABELS in parts else {}
    labels |= dict.fromkeys(_free_labels(node))
    if MIG_MANAGER not in parts:
        return CleanupPlan(labels=labels)
    labels |= {key: None for key in NOTHING_ASKED if key in node.labels}
    if operands.paused_here(node):
        labels |= operands.restore(node)
    return CleanupPlan(
        labels,
        dict.fromkeys(_annotations(node)),
        CONDITION_TYPE if node.condition(CONDITION_TYPE) is not None else None,
        node.unschedulable and CORDON_ANNOTATION in node.annotations,
    )


def _free_labels(node: KubeNode) -> list[str]:
    return [key for key in FREE_LABELS if key in node.labels]


def _annotations(node: KubeNode) -> list[str]:
    return [key for key in node.annotations if key.startswith(_ANNOTATION_PREFIXES) and key != KEEP_ANNOTATION]
