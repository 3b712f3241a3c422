"""Which names a viewer may see: those of some namespaces or of all. Pure; others decide who has which sight."""

from __future__ import annotations

from dataclasses import dataclass

from tranche.documents.blocks import IN_NAMESPACES, Document

HIDDEN = "another namespace"
"""Stands for a name that a viewer may not see."""


@dataclass(frozen=True, slots=True)
class NameVisibility:
    """Names in `namespaces` are visible; with `everywhere` all names, also those in no namespace."""

    namespaces: frozenset[str] = frozenset()
    everywhere: bool = False

    def sees(self, namespace: str) -> bool:
        """Whether names in that namespace may be seen; "" means that the namespace is unknown."""
        return self.everywhere or (namespace != "" and namespace in self.namespaces)


def namespace_of(allocation: Document) -> str:
    """The namespace of an allocation's holder; "" if it is neither a pod nor a claim."""
    keeper = allocation.get("keeper", {})
    return str(keeper.get("namespace") or "") if keeper.get("kind") in IN_NAMESPACES else ""
