"""Whose names a viewer may see: of a cluster's namespaces some or all. Pure; who has which sight is decided elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tranche.documents.blocks import IN_NAMESPACES, Document

HIDDEN = "another namespace"
"""What stands for a name that a viewer may not see."""


@dataclass(frozen=True, slots=True)
class NameVisibility:
    """Names in the namespaces of `namespaces` may be seen; with `everywhere` those of all, and of whoever is in none."""

    namespaces: frozenset[str] = frozenset()
    everywhere: bool = False

    def sees(self, namespace: str) -> bool:
        """Whether names in that namespace may be seen; "" is where no namespace is known."""
        return self.everywhere or (namespace != "" and namespace in self.namespaces)

    def narrowed_to(self, namespace: str) -> NameVisibility:
        """Of what this sight sees, that namespace alone."""
        return replace(self, namespaces=frozenset({namespace} if self.sees(namespace) else ()), everywhere=False)


def namespace_of(allocation: Document) -> str:
    """The namespace of whoever holds an allocation; "" where it is no pod's and no claim's."""
    keeper = allocation.get("keeper", {})
    return str(keeper.get("namespace") or "") if keeper.get("kind") in IN_NAMESPACES else ""
