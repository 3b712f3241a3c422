"""A uvicorn connection and its lifetime. Strangers take neither the server's places nor its time."""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tranche.dashboard.connection_limit import KNOWN, ConnectionLimit

WHOLE_SECONDS = 10.0
"""For a whole request to arrive, and for the client to take the answer."""
_JUDGED_SECONDS = 60.0
"""For the sender of a whole request to be let in: an API server may have to say who it is."""
_HEARD_SECONDS = 5.0
"""For a client that sends no HTTP to take the answer that says so."""
ACCEPTED_AT_ONCE = 64
"""Connections accepted in one turn of the event loop. A few turns pass before one can be ended."""


def guarded(most: int, *, seconds: float = WHOLE_SECONDS) -> type[asyncio.Protocol]:
    """The protocol of one server: it keeps `most` connections, at most a quarter of the files that the process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = most if files == resource.RLIM_INFINITY else min(most, files // 4)

    class GuardedConnection(_GuardedConnection):
        strangers = ConnectionLimit(room)
        whole_seconds = seconds

    return GuardedConnection


class _GuardedConnection(H11Protocol):
    strangers: ClassVar[ConnectionLimit[_GuardedConnection]]
    whole_seconds: ClassVar[float]
    _deadline: asyncio.TimerHandle | None = None
    _whole: RequestResponseCycle | None = None
    _refused: bool = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(self.whole_seconds)
        gone = self.strangers.enter(self, len(self.connections))
        if gone is not None:
            gone.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.strangers.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        try:
            super().data_received(data)
        except Exception:  # whatever a stranger sends affects its own connection alone
            self.transport.abort()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is None or self.cycle.response_complete:
            return
        if self.cycle is not before:
            self.scope["state"][KNOWN] = self._let_in
        if not self.cycle.more_body and self.cycle is not self._whole and self in self.strangers:
            self._whole = self.cycle
            self._wait(_JUDGED_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """Answer 400, then discard input until the sender has taken the answer, or for a few seconds.

        Closing at once would reset the connection, and a reset ends a whole `kubectl port-forward`.
        """
        self._refused = True
        self.transport.write(
            f"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n{msg}".encode()
        )
        self.transport.write_eof()
        self._wait(_HEARD_SECONDS)

    def shutdown(self) -> None:
        if self._refused:
            self.transport.abort()
        else:
            super().shutdown()

    def on_response_complete(self) -> None:
        if not self.transport.is_closing():
            self._wait(self.whole_seconds)
            self.strangers.enter(self, 0)
        super().on_response_complete()

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _let_in(self, who: str) -> None:
        if not self.transport.is_closing():
            self._stop_waiting()
            self.strangers.let_in(self, who)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def only_our_own(record: logging.LogRecord) -> bool:
    """Whether uvicorn logged this record about the server itself, not about what a client sent."""
    return record.levelno >= logging.ERROR and record.module != H11Protocol.__module__.rpartition(".")[2]
