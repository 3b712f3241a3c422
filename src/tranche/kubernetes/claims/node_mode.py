"""How a node's GPUs are given away: the administrator's word, on a label of the node."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tranche.kubernetes.claims.vocabulary import DYNAMIC_MIG_LABEL, MODE_LABEL


class NodeMode(StrEnum):
    """STATIC: by layouts and the device plugin. DYNAMIC: slices and whole GPUs by claims. SHARED: parts of GPUs and whole ones
    by claims. MIXED: all of these by claims. OFF: not at all.
    """

    STATIC = "static"
    DYNAMIC = "dynamic"
    SHARED = "shared"
    MIXED = "mixed"
    OFF = "off"

    @property
    def by_claims(self) -> bool:
        """Whether claims get anything."""
        return self in (NodeMode.DYNAMIC, NodeMode.SHARED, NodeMode.MIXED)

    @property
    def offers_slices(self) -> bool:
        """Whether claims get slices, each for one holder alone."""
        return self in (NodeMode.DYNAMIC, NodeMode.MIXED)

    @property
    def offers_parts(self) -> bool:
        """Whether claims get parts of devices that other claims share."""
        return self in (NodeMode.SHARED, NodeMode.MIXED)


def node_mode(labels: Mapping[str, str]) -> NodeMode | None:
    """The mode that the labels ask for, STATIC without any; None for an unknown word.

    Without our label, Run:ai's label for a node that is cut on demand means DYNAMIC.
    """
    word = labels.get(MODE_LABEL)
    if word is None:
        return NodeMode.DYNAMIC if labels.get(DYNAMIC_MIG_LABEL) == "true" else NodeMode.STATIC
    return NodeMode(word) if word in tuple(NodeMode) else None


def mode_in_force(labels: Mapping[str, str] | None) -> NodeMode:
    """The mode of a node with those labels. OFF for an unknown word, and while the labels are unknown (None): a guess must give
    nothing away.
    """
    return NodeMode.OFF if labels is None else node_mode(labels) or NodeMode.OFF
