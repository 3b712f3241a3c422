"""The register's events, read once: pages ask for them again and again.

Another register may replace it, with events at the same positions. An event itself tells them apart: its time, data and words at
its position.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tranche.core.errors import LedgerUnavailable
from tranche.documents.blocks import Document

_KEPT = 10_000
"""As many as the register keeps."""

ReadEvents = Callable[[int], Sequence[Document]]
"""Reads the events after a position, oldest first."""


class EventLog:
    """Safe to use from several threads."""

    def __init__(self, read: ReadEvents) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._known: list[Document] = []

    def up_to(self, newest: Document | None) -> Sequence[Document]:
        """All events of the register that has `newest`, oldest first. Reads unless `newest` is the last one known.

        `newest` is None where there was none. LedgerUnavailable when the register has been replaced since.
        """
        with self._lock:
            if newest is None or not self._known or newest != self._known[-1]:
                self._known = self._read_on()
            if newest is not None and not _has(self._known, newest):
                raise LedgerUnavailable(
                    "the ledger was replaced by another one since the machine was seen", hint="load the page again"
                )
            return self._known

    def _read_on(self) -> list[Document]:
        if not self._known:
            return list(self._read(0))
        # Read the last known event again: if it differs or is missing, the register was replaced.
        last = self._known[-1]
        found = list(self._read(last["position"] - 1))
        # A new list: another thread may be reading the old one.
        return [*self._known, *found[1:]][-_KEPT:] if found[:1] == [last] else list(self._read(0))


def _has(events: Sequence[Document], event: Document) -> bool:
    """Whether the event is one of these."""
    return next((each for each in reversed(events) if each["position"] <= event["position"]), None) == event
