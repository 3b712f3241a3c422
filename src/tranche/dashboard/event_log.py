"""The events that the register keeps, read once: pages ask for them again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

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

    def up_to(self, newest: int) -> Sequence[Document]:
        """All events, oldest first, at least up to that position; read where it is not the last one known."""
        with self._lock:
            last = self._known[-1] if self._known else None
            if last is None or newest != last["position"]:
                # The last one known is read again: where it is another one, or is not there, the register is another one.
                found = [] if last is None else list(self._read(last["position"] - 1))
                same = bool(found) and found[0] == last
                # A new list: somebody may be reading the old one.
                self._known = [*self._known, *found[1:]][-_KEPT:] if same else list(self._read(0))
            return self._known
