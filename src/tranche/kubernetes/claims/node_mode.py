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
        """Whether claims are given anything."""
        return self in (NodeMode.DYNAMIC, NodeMode.SHARED, NodeMode.MIXED)

    @property
    def offers_slices(self) -> bool:
        """Whether claims are given slices, for one holder alone."""
        return self in (NodeMode.DYNAMIC, NodeMode.MIXED)

    @property
    def offers_parts(self) -> bool:
        """Whether claims are given parts of devices that others have parts of as well."""
        return self in (NodeMode.SHARED, NodeMode.MIXED)


def node_mode(labels: Mapping[str, str]) -> NodeMode | None:
    """The mode that the labels ask for, STATIC when none does; None for a word that is none.

    Run:ai's label for a node that is cut on demand means DYNAMIC where ours is not there.
    """
    word = labels.get(MODE_LABEL)
    if word is None:
        return NodeMode.DYNAMIC if labels.get(DYNAMIC_MIG_LABEL) == "true" else NodeMode.STATIC
    return NodeMode(word) if word in tuple(NodeMode) else None


def mode_in_force(labels: Mapping[str, str] | None) -> NodeMode:
    """The mode of a node with those labels; OFF for a word that is none and while they are not known (None): nothing is given
    away by guessing.
    """
    return NodeMode.OFF if labels is None else node_mode(labels) or NodeMode.OFF
