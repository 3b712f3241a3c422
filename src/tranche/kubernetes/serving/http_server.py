"""A minimal HTTP server for GET and HEAD, and for POST where there is a `question`; and a process's health over it."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from tranche.core.errors import UsageError
from tranche.kubernetes.component import Readiness

_REQUEST_SECONDS = 5.0
_LONGEST_REQUEST = 8192
_MOST_CONNECTIONS = 64
_TAKEN_AT_ONCE = 8
"""Each turn of the event loop accepts this fraction of the limit: a few turns pass before a request has been read."""
_KEPT_BY_THE_KERNEL = 1_024
"""Connections not yet taken. The client of one more would have to retry after a second: too late for a probe."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer."""

    status: HTTPStatus
    content: bytes = b""
    content_type: str = "application/json"


class HttpServer:
    """Calls `answer`, if there is one, with a path, without its query, and the request's headers, with lower-case names.

    Calls `question`, if there is one, with a path and the body of a POST, of at most `longest` bytes. A request and its answer
    together may take five seconds, or `seconds`, even if the client does not read the answer; then the server closes the
    connection. Above `most` connections it closes the oldest without a whole request, else the oldest: a client that opens many
    takes neither the process's memory nor another client's place.
    """

    def __init__(
        self,
        answer: Callable[[str, Mapping[str, str]], Awaitable[HttpResponse]] | None,
        question: Callable[[str, bytes], Awaitable[HttpResponse]] | None = None,
        *,
        longest: int = 0,
        most: int = _MOST_CONNECTIONS,
        seconds: float = _REQUEST_SECONDS,
    ) -> None:
        self._answer = answer
        self._question = question
        self._longest = longest
        self._most = most
        self._seconds = seconds
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, bool] = {}  # whether its whole request has arrived

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self, host: str, port: int, *, option: str, tls: ssl.SSLContext | None = None) -> None:
        """Start listening, on every address when `host` is ""; port 0 takes a free one. With `tls`, HTTPS alone.

        UsageError if the port is not available; `option` is the option that chooses another.
        """
        seconds = None if tls is None else self._seconds
        try:
            listener = _listener(host, port)
            self._server = await asyncio.start_server(
                self._serve,
                sock=listener,
                backlog=max(1, self._most // _TAKEN_AT_ONCE),
                limit=_LONGEST_REQUEST,
                ssl=tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
            listener.listen(_KEPT_BY_THE_KERNEL)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror or error}", hint=f"choose another port with {option}"
            ) from error

    def stop(self) -> None:
        """Stop listening; unfinished answers end with the event loop."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._most:
            gone = next((each for each, asked in self._open.items() if not asked), next(iter(self._open)))
            del self._open[gone]
            gone.transport.abort()
        self._open[writer] = False
        try:
            async with asyncio.timeout(self._seconds):
                await self._exchange(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client went away, was too slow, or does not speak HTTP
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, *_ = first.split(" ", 2)
        answer = HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED, b"{}")
        headers = _headers(lines)
        if method in ("GET", "HEAD") and self._answer is not None:
            self._asked(writer)
            answer = await self._answer(path.partition("?")[0], headers)
        elif method == "POST" and self._question is not None:
            size = int(headers.get("content-length", "0"))
            if 0 <= size <= self._longest:
                body = await reader.readexactly(size)
                self._asked(writer)
                answer = await self._question(path.partition("?")[0], body)
            else:
                answer = HttpResponse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"{}")
        content = b"" if method == "HEAD" else answer.content
        writer.write(
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nContent-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
            + content
        )
        await writer.drain()

    def _asked(self, writer: asyncio.StreamWriter) -> None:
        if writer in self._open:
            self._open[writer] = True


def _headers(lines: list[str]) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _listener(host: str, port: int) -> socket.socket:
    """One socket: "" by name would give one for IPv4 and one for IPv6, and under port 0 with different ports.

    Its connections send at once: asyncio ensures that only for sockets of its own. Otherwise an answer under TLS would wait for
    the acknowledgement of what the handshake sent, which takes 40 ms.
    """
    if host == "" and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def serve_health(host: str, port: int, readiness: Callable[[], Mapping[str, Readiness]]) -> HttpServer:
    """The server of a process's health, which listens on every address when `host` is ""; port 0 takes a free one.

    /healthz says 200 while the event loop runs. /readyz says 200 when all components are ready, else 503; either way its body
    names each component with what it lacks. UsageError if the port is taken.
    """

    async def answer(path: str, _: Mapping[str, str]) -> HttpResponse:
        if path == "/healthz":
            return _json(HTTPStatus.OK, {"ok": True})
        if path == "/readyz":
            found = readiness()
            ready = all(each.ready for each in found.values())
            components = {name: each.why or "ready" for name, each in found.items()}
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            return _json(status, {"ready": ready, "components": components})
        return _json(HTTPStatus.NOT_FOUND, {})

    server = HttpServer(answer)
    await server.start(host, port, option="--health-port")
    return server


def _json(status: HTTPStatus, body: Mapping[str, object]) -> HttpResponse:
    return HttpResponse(status, json.dumps(body).encode())
