"""The agent's health over HTTP: /healthz while the process serves, /readyz when every component does its work."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus

from tranche.kubernetes.component import Readiness
from tranche.kubernetes.serving.http_server import HttpResponse, HttpServer


class HealthServer:
    """Answers on one port.

    /healthz says 200 while the event loop runs. /readyz says 200 when all components are ready, else 503; either way its body
    names each component with what it lacks.
    """

    def __init__(self, readiness: Callable[[], Mapping[str, Readiness]]) -> None:
        self._readiness = readiness
        self._server = HttpServer(self._answer)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    async def start(self, host: str, port: int) -> None:
        """Start listening, on every address when `host` is ""; port 0 takes a free one. UsageError if the port is taken."""
        await self._server.start(host, port, option="--health-port")

    def stop(self) -> None:
        """Stop listening; unfinished answers end with the event loop."""
        self._server.stop()

    async def _answer(self, path: str, _: Mapping[str, str]) -> HttpResponse:
        if path == "/healthz":
            return _json(HTTPStatus.OK, {"ok": True})
        if path == "/readyz":
            found = self._readiness()
            ready = all(readiness.ready for readiness in found.values())
            components = {name: readiness.why or "ready" for name, readiness in found.items()}
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            return _json(status, {"ready": ready, "components": components})
        return _json(HTTPStatus.NOT_FOUND, {})


def _json(status: HTTPStatus, body: Mapping[str, object]) -> HttpResponse:
    return HttpResponse(status, json.dumps(body).encode())
