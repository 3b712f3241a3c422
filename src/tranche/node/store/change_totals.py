"""How many changes there were and how long they took, over all processes and restarts: what the journal of plans forgets."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, float("inf"))
"""Upper bounds in seconds under which changes are counted; the last takes all others."""


class ChangeKind(StrEnum):
    """LAYOUT: declared by an administrator. REQUEST: what a request needed."""

    LAYOUT = "layout"
    REQUEST = "request"


class ChangeStatus(StrEnum):
    """DONE; UNDONE after a failure; INTERRUPTED: its process died, and another cleared up after it, however much later."""

    DONE = "done"
    UNDONE = "undone"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ChangeSummary:
    """The changes of one kind with one outcome: how many by upper bound of their duration, each once, and their seconds."""

    counts: Mapping[float, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """How many."""
        return sum(self.counts.values())


def count_change(db: sqlite3.Connection, kind: ChangeKind, outcome: ChangeStatus, seconds: float) -> None:
    """Count a change that has ended, within the transaction that ends it. No clock that was set back makes it shorter than 0."""
    lasted = max(seconds, 0.0)
    bound = next(each for each in BOUNDS if lasted <= each)
    db.execute(
        "INSERT INTO change_totals VALUES (?, ?, ?, 1, ?) ON CONFLICT (kind, outcome, bound) "
        "DO UPDATE SET changes = changes + 1, seconds = seconds + excluded.seconds",
        (kind, outcome, bound, lasted),
    )


def change_totals(db: sqlite3.Connection) -> Mapping[tuple[ChangeKind, ChangeStatus], ChangeSummary]:
    """All that was ever counted; every kind and outcome is there, with nothing where nothing happened."""
    found: dict[tuple[ChangeKind, ChangeStatus], tuple[dict[float, int], float]] = {
        (kind, outcome): ({}, 0.0) for kind in ChangeKind for outcome in ChangeStatus
    }
    for kind, outcome, bound, changes, seconds in db.execute("SELECT * FROM change_totals"):
        place = (ChangeKind(kind), ChangeStatus(outcome))
        counts, before = found[place]
        found[place] = ({**counts, bound: changes}, before + seconds)
    return {place: ChangeSummary(counts, seconds) for place, (counts, seconds) in found.items()}
