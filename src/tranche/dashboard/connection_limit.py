"""How many connections a server keeps over which nobody who may come in has asked anything. Pure.

Each has a deadline, which `connection` keeps. There is room for so many; when one more comes, the one that came first has to go.
So strangers push one another out, and never anybody who was let in. Where nobody else waits, whoever has most inside gives one
up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

Connection = TypeVar("Connection")

KNOWN = "tranche.known"
"""Where a request's `state` has what to call when whoever asks is let in."""


class ConnectionLimit(Generic[Connection]):
    """Room for `most` connections, in the order in which they came."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Connection, None] = {}
        self._inside: dict[Connection, str] = {}

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._waiting

    def enter(self, connection: Connection, open_now: int) -> Connection | None:
        """It waits from now on; so many are open with it. Which has to go for it, if one has to."""
        self.leave(connection)
        gone = self._first() if open_now > self._most else None
        if gone is not None:
            self.leave(gone)
        self._waiting[connection] = None
        return gone

    def let_in(self, connection: Connection, who: str) -> None:
        """It is somebody's who may be here."""
        self.leave(connection)
        self._inside[connection] = who

    def leave(self, connection: Connection) -> None:
        """It has ended."""
        self._waiting.pop(connection, None)
        self._inside.pop(connection, None)

    def _first(self) -> Connection | None:
        if self._waiting:
            return next(iter(self._waiting))
        most = Counter(self._inside.values()).most_common(1)
        return next(each for each, who in self._inside.items() if who == most[0][0]) if most else None


def let_in(scope: Mapping[str, Any], who: str = "") -> None:
    """Whoever asks this may come in: his connection lasts for as long as the answer does."""
    known: Callable[[str], None] | None = scope.get("state", {}).get(KNOWN)
    if known is not None:
        known(who)
