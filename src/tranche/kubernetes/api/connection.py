"""HTTP to one API server, by httpx2: requests, watches, and the errors for its refusals.

Why not a Kubernetes client library: Tranche uses nine calls on four kinds. The lightest library (lightkube) costs 5 MB of memory
and two more packages on top of the same httpx2, has no informer, and decodes whole objects where Tranche reads a few fields; the
official one costs twenty packages. The code that it would save, reading a kubeconfig, is one module here.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2

from tranche.core.errors import (
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRejected,
    KubernetesUnavailable,
    TrancheError,
)
from tranche.kubernetes.api.kubeconfig import ApiServer

_TIMEOUT = httpx2.Timeout(10.0, connect=5.0)
SILENT_SECONDS = 150.0
"""A watch ends after this much silence. The API server sends a bookmark about once a minute for kinds that it caches, so silence
there means a lost connection. A watch of other kinds, such as events, ends earlier, by its timeoutSeconds."""
_WATCH_TIMEOUT = httpx2.Timeout(10.0, connect=5.0, read=SILENT_SECONDS)
# A program may be silent for hours; the keepalive below checks that the API server is there.
_LOG_TIMEOUT = httpx2.Timeout(10.0, connect=5.0, read=None)
# This detects a vanished peer within about 40 s.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5),
)


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """An API server's answer to `what`, an action that completes the sentence `cannot ...`."""

    what: str
    status: int
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """The API server's own words about a refusal."""
        return str(self.body.get("message") or f"HTTP status {self.status}")

    @property
    def causes(self) -> tuple[str, ...]:
        """The machine-readable reasons of a refusal, such as `DisruptionBudget`."""
        causes = (self.body.get("details") or {}).get("causes") or ()
        return tuple(str(cause.get("reason", "")) for cause in causes)

    def accepted(self) -> Mapping[str, Any]:
        """The object in the answer; raises the error that the status stands for when the request was refused."""
        if 200 <= self.status < 300:
            return self.body
        raise self.error()

    def unless(self, *statuses: int) -> Mapping[str, Any] | None:
        """As `accepted`, but None for a refusal with one of these statuses."""
        return None if self.status in statuses else self.accepted()

    def error(self) -> TrancheError:
        """The error that a refusal stands for."""
        text = f"cannot {self.what}: {self.message}"
        if self.status in (401, 403):
            return KubernetesForbidden(
                text, hint="grant the agent's service account the permissions that the chart grants"
            )
        if self.status == 404:
            return KubernetesNotFound(text)
        if self.status in (408, 429) or self.status >= 500:
            return KubernetesUnavailable(text)
        return KubernetesRejected(text)


class ApiConnection:
    """Keeps connections to one API server; the server's audit log records `user_agent` with each request.

    Watches that recover pause by `random`, which gives numbers from 0 to 1, and `sleep`. `now` gives the time in UTC.
    """

    def __init__(
        self,
        server: ApiServer,
        *,
        user_agent: str = "tranche",
        random: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.random = random
        self.sleep = sleep
        self.now = now
        self._extensions = {"sni_hostname": server.server_name} if server.server_name else {}
        self._http = httpx2.AsyncClient(
            base_url=server.url,
            auth=None if server.token is None else _BearerToken(server.token),
            headers={"Accept": "application/json", "User-Agent": user_agent},
            timeout=_TIMEOUT,
            trust_env=False,
            transport=httpx2.AsyncHTTPTransport(
                verify=server.tls if server.tls is not None else False, trust_env=False, socket_options=_KEEPALIVE
            ),
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def ask(
        self,
        what: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> ApiResponse:
        """Send one request, which must be safe to send twice; KubernetesUnavailable when no answer comes.

        Sends it a second time when the connection breaks: only its use reveals that a restart of the API server broke a
        connection that was kept open.
        """
        request = self._http.build_request(
            method,
            path,
            params=query,
            content=None if body is None else json.dumps(body, separators=(",", ":")),
            headers={} if body is None else {"Content-Type": content_type},
            extensions=self._extensions,
        )
        try:
            try:
                response = await self._http.send(request)
            except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError):
                response = await self._http.send(request)
        except httpx2.HTTPError as error:
            raise _unreachable(what, error) from error
        return ApiResponse(what, response.status_code, _json_object(response.content))

    async def text(self, what: str, path: str) -> str | None:
        """A page that is no object, such as a log; None when refused. KubernetesUnavailable when no answer comes."""
        try:
            response = await self._http.get(path, headers={"Accept": "*/*"}, extensions=self._extensions)
        except httpx2.HTTPError as error:
            raise _unreachable(what, error) from error
        return response.text if response.status_code in (200, 503) else None

    async def follow(self, what: str, path: str, query: Mapping[str, str]) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield an empty object once the API server has accepted a watch, then each of its lines. Returns when the server ends
        the watch or is silent for `SILENT_SECONDS`: silence is no failure, and the next request shows whether the server is
        there.

        KubernetesUnavailable when the connection breaks; otherwise the error that a refusal stands for.
        """
        accepted = False
        try:
            async with self._http.stream(
                "GET", path, params=query, timeout=_WATCH_TIMEOUT, extensions=self._extensions
            ) as response:
                if response.status_code != 200:
                    raise ApiResponse(what, response.status_code, _json_object(await response.aread())).error()
                accepted = True
                yield {}
                async for line in response.aiter_lines():
                    if line:
                        yield json.loads(line)
        except httpx2.ReadTimeout as error:
            if not accepted:
                raise _unreachable(what, error) from error
        except (httpx2.HTTPError, ValueError) as error:
            raise _unreachable(what, error) from error

    async def lines(self, what: str, path: str, query: Mapping[str, str]) -> AsyncGenerator[str, None]:
        """Yield the lines of a page as they are written, through any silence; errors as for `follow`."""
        try:
            async with self._http.stream(
                "GET", path, params=query, headers={"Accept": "*/*"}, timeout=_LOG_TIMEOUT, extensions=self._extensions
            ) as response:
                if response.status_code != 200:
                    raise ApiResponse(what, response.status_code, _json_object(await response.aread())).error()
                async for line in response.aiter_lines():
                    yield line
        except httpx2.HTTPError as error:
            raise _unreachable(what, error) from error


class _BearerToken(httpx2.Auth):
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._token()}"
        yield request


def _unreachable(what: str, error: Exception) -> KubernetesUnavailable:
    cause = str(error) or type(error).__name__
    return KubernetesUnavailable(f"cannot {what}: the API server does not answer: {cause}")


def _json_object(content: bytes) -> Mapping[str, Any]:
    """The object in an answer; empty for anything else, such as a proxy's page."""
    try:
        value = json.loads(content) if content else {}
    except ValueError:
        return {"message": content[:200].decode(errors="replace")}
    return value if isinstance(value, dict) else {}
