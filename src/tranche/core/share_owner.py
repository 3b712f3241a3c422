"""Whose a share is, in words that outlive it: its events name him, and what he held can be added up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class OwnerKind(StrEnum):
    """A user of the machine, or a namespace of Kubernetes."""

    USER = "user"
    NAMESPACE = "namespace"


@dataclass(frozen=True, slots=True)
class ShareOwner:
    """A user by his name, or a namespace."""

    kind: OwnerKind
    name: str


def owner_to_dict(owner: ShareOwner | None) -> dict[str, str] | None:
    """The owner as JSON data."""
    return None if owner is None else {"kind": str(owner.kind), "name": owner.name}


def owner_from_dict(data: Any) -> ShareOwner | None:
    """The owner that owner_to_dict wrote; earlier versions wrote none."""
    return None if data is None else ShareOwner(OwnerKind(data["kind"]), data["name"])
