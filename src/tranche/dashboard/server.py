"""How both dashboards serve among strangers: the socket, uvicorn's connections and their lifetime, and the log.

Strangers take neither the server's places nor its time.
"""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import os
import queue
import resource
import socket
import threading
from contextlib import suppress
from typing import ClassVar, Literal

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tranche.core.errors import UsageError
from tranche.dashboard.connection_limit import KNOWN, ConnectionLimit

WHOLE_SECONDS = 10.0
"""For a whole request to arrive, and for the client to take the answer."""
_JUDGED_SECONDS = 60.0
"""For the sender of a whole request to be let in: an API server may have to say who it is."""
_HEARD_SECONDS = 5.0
"""For a client that sends no HTTP to take the answer that says so."""
ACCEPTED_AT_ONCE = 64
"""Connections accepted in one turn of the event loop. A few turns pass before one can be ended."""
_MOST_WAITING = 1_000
"""Pieces of text that wait for a slow reader. Further text is lost: the server does not wait."""
_KEPT_BY_THE_KERNEL = 1_024
"""Connections not yet accepted. The client of one more would have to try again after a second."""
_LAST_SECONDS = 2


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


class BackgroundWriter(io.TextIOBase):
    """A text stream to a descriptor that stays open. `write` never waits: a slow reader blocks its own thread, and no request."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: queue.Queue[str] = queue.Queue(_MOST_WAITING)
        # The thread holds no Python lock while it writes, so the process can end meanwhile.
        threading.Thread(target=self._write_on, name="written aside", daemon=True).start()

    def writable(self) -> bool:
        """Always true."""
        return True

    def write(self, text: str) -> int:
        """Queue text for the reader; drops it where too much waits already."""
        with suppress(queue.Full):
            self._waiting.put_nowait(text)
        return len(text)

    def _write_on(self) -> None:
        while True:
            left = self._waiting.get().encode(errors="replace")
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                continue  # the reader is gone, and there is no one to tell


class GuardedServer(uvicorn.Server):
    """Accepts a few connections in each turn of the event loop; the kernel keeps many more until then."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_KEPT_BY_THE_KERNEL)


def guarded_config(app: ASGIApp, most: int, *, lifespan: Literal["on", "off"]) -> uvicorn.Config:
    """How uvicorn serves among strangers: with a limit of connections, and no logs of what strangers send."""
    logging.getLogger("uvicorn.error").addFilter(only_our_own)
    return uvicorn.Config(
        app,
        http=guarded(most),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan=lifespan,
        ws="none",
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=_LAST_SECONDS,
    )


def listening(host: str, port: int) -> socket.socket:
    """A socket that takes connections there; UsageError when it cannot be opened."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"--port {port}: another program already uses this port", hint="choose another port, or 0 for any"
            ) from error
        raise UsageError(f"--port {port}: cannot listen on this port: {error.strerror}") from error
    return listener
