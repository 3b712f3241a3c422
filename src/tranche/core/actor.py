"""Who did something by way of a page: what events name beside what was done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Actor:
    """`by` is the program that was asked to, `user` the name of whoever it works as, or of whoever asked it."""

    by: str
    user: str

    def __str__(self) -> str:
        return f"{self.user}, by the {self.by}"


def actor_to_dict(actor: Actor | None) -> dict[str, Any] | None:
    """The actor as JSON data."""
    return None if actor is None else {"by": actor.by, "user": actor.user}


def actor_from_dict(data: Any) -> Actor | None:
    """The actor that actor_to_dict wrote; earlier versions wrote none."""
    return None if data is None else Actor(data["by"], data["user"])
