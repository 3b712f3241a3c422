"""The agent's health over HTTP: /healthz while the process serves, /readyz when every component does its work."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus

from tranche.core.errors import UsageError
from tranche.kubernetes.component import Readiness

_REQUEST_SECONDS = 5.0
_LONGEST_REQUEST = 8192


class HealthServer:
    """Answers GET and HEAD on one port.

    /healthz says 200 as long as the event loop turns. /readyz says 200 when all components are ready, else 503; either way its
    body names each component with what it lacks.
    """

    def __init__(self, readiness: Callable[[], Mapping[str, Readiness]]) -> None:
        self._readiness = readiness
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self, host: str, port: int) -> None:
        """Begin to listen, on every address when `host` is ""; port 0 takes a free one. UsageError when it cannot be had."""
        try:
            self._server = await asyncio.start_server(self._serve, sock=_listener(host, port), limit=_LONGEST_REQUEST)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror or error}", hint="choose another with --health-port"
            ) from error

    def stop(self) -> None:
        """Stop listening; answers in the making are dropped with the event loop."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, *_ = head.decode("latin-1").split(" ", 2)
                status, body = self._answer(method, path.partition("?")[0])
                content = b"" if method == "HEAD" else json.dumps(body).encode()
                writer.write(
                    f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
                    + content
                )
                await writer.drain()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked went away, was too slow, or does not speak HTTP
        finally:
            writer.close()

    def _answer(self, method: str, path: str) -> tuple[HTTPStatus, Mapping[str, object]]:
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, {}
        if path == "/healthz":
            return HTTPStatus.OK, {"ok": True}
        if path == "/readyz":
            found = self._readiness()
            ready = all(readiness.ready for readiness in found.values())
            components = {name: readiness.why or "ready" for name, readiness in found.items()}
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            return status, {"ready": ready, "components": components}
        return HTTPStatus.NOT_FOUND, {}


def _listener(host: str, port: int) -> socket.socket:
    """One socket: "" by name would give one for IPv4 and one for IPv6, and under port 0 with different ports."""
    if host == "" and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)
