"""What was seen of the machine at one moment; pages are made of this alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tranche.core.allocation import NodeView
from tranche.dashboard.gauges_view import NO_RECORD, UseRecord
from tranche.documents.blocks import Document
from tranche.documents.gauge_samples import GaugeSample
from tranche.documents.history import seconds_of
from tranche.node.store.records import Waiter

LONG_WAIT_SECONDS = 1800.0


def waits_long(waiters: Iterable[Document], now: float) -> Sequence[Document]:
    """The waiters that have waited too long."""
    return [each for each in waiters if now - seconds_of(each["created"]) >= LONG_WAIT_SECONDS]


@dataclass(frozen=True, slots=True)
class MachineSnapshot:
    """The machine at `taken`, in seconds since the epoch.

    `version` grows when something that pages show has changed. `overview` is the document that `tranche top -o json` prints.
    `readings` are what the hardware says of its use. `newest_event` is None where there is none. `notes` say what the picture
    does not show. `plans` are those that run now. `samples` are earlier readings; alone they are no change. Neither is `use`.
    """

    version: int
    taken: float
    view: NodeView
    queue: tuple[Waiter, ...]
    away: frozenset[str]
    overview: Document
    newest_event: Document | None
    readings: tuple[Document, ...] = ()
    notes: tuple[str, ...] = ()
    plans: tuple[Document, ...] = ()
    samples: tuple[GaugeSample, ...] = ()
    use: UseRecord = NO_RECORD

    def shows_the_same(self, other: MachineSnapshot) -> bool:
        """Whether a page of the other snapshot would look the same."""
        mine = (self.overview, self.newest_event, self.readings, self.notes, self.plans, self.late)
        return mine == (other.overview, other.newest_event, other.readings, other.notes, other.plans, other.late)

    @property
    def late(self) -> tuple[str, ...]:
        """The ids of waiters that have waited too long."""
        return tuple(each["id"] for each in waits_long(self.overview["waiters"], self.taken))
