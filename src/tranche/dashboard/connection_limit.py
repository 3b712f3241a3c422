"""How many connections a server keeps on which no admitted client has asked anything. Pure.

Each has a deadline, which `connection` keeps. A newcomer beyond the limit ends the oldest. So strangers push one another out, and
never a client that was let in. Where no stranger waits, the client with the most connections inside gives one up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

Connection = TypeVar("Connection")

KNOWN = "tranche.known"
"""The key in a request's `state` of the function to call when the sender is let in."""


class ConnectionLimit(Generic[Connection]):
    """Room for `most` connections, in order of arrival."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Connection, None] = {}
        self._inside: dict[Connection, str] = {}

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._waiting

    def enter(self, connection: Connection, open_now: int) -> Connection | None:
        """The connection waits from now on; `open_now` counts all open ones. Returns the one that must go for it, if any."""
        self.leave(connection)
        gone = self._first() if open_now > self._most else None
        if gone is not None:
            self.leave(gone)
        self._waiting[connection] = None
        return gone

    def let_in(self, connection: Connection, who: str) -> None:
        """The connection belongs to an admitted client."""
        self.leave(connection)
        self._inside[connection] = who

    def leave(self, connection: Connection) -> None:
        """The connection has ended."""
        self._waiting.pop(connection, None)
        self._inside.pop(connection, None)

    def _first(self) -> Connection | None:
        if self._waiting:
            return next(iter(self._waiting))
        most = Counter(self._inside.values()).most_common(1)
        return next(each for each, who in self._inside.items() if who == most[0][0]) if most else None


def let_in(scope: Mapping[str, Any], who: str = "") -> None:
    """Admit the sender of this request; the connection lasts as long as the answer."""
    known: Callable[[str], None] | None = scope.get("state", {}).get(KNOWN)
    if known is not None:
        known(who)
