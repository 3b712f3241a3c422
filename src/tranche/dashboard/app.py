"""The addresses of the dashboard over HTTP. Whoever asks passes the gate first; every answer carries its headers."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tranche.core.errors import TrancheError
from tranche.dashboard.access import HEADERS, DashboardRefusal, Gate
from tranche.dashboard.event_log import EventLog, ReadEvents
from tranche.dashboard.frame import entered_page, live_part, plain_page, whole_page
from tranche.dashboard.live import LiveMachine
from tranche.dashboard.pages import page_at
from tranche.dashboard.watch import OpenHost
from tranche.documents.describe import said_in_utc
from tranche.documents.envelope import document
from tranche.documents.picture import draw_picture
from tranche.documents.picture_style import STYLE

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_OPEN = frozenset({"/enter"})
_PART = "tranche-part"


@dataclass(frozen=True, slots=True)
class Served:
    """What the dashboard is of: the machine's name, how to open it, and how to read its events."""

    machine: str
    open_host: OpenHost
    read_events: ReadEvents


def dashboard_app(gate: Gate, served: Served) -> ASGIApp:
    """The application behind the gate; its lifespan begins and ends the watch."""
    routes = [
        Route("/enter", _enter(gate)),
        Route("/live", _news),
        Route("/api/overview", _overview),
        Route("/api/events", _events),
        Route("/picture.svg", _picture),
        Route("/static/{name}", _static),
        Route("/{path:path}", _page),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.served, app.state.live = served, LiveMachine(served.open_host)
        app.state.events = EventLog(served.read_events)
        app.state.live.start()
        try:
            yield
        finally:
            await app.state.live.end()

    return _GateKeeper(Starlette(routes=routes, lifespan=lifespan), gate)


class _GateKeeper:
    """Stands before everything, also before what answers when a page fails."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_ENCODED_HEADERS]
            await send(message)

        answer = self._app if (refused := self._refused(scope)) is None else _refusal(refused)
        await answer(scope, receive, send_with_headers)

    def _refused(self, scope: Scope) -> DashboardRefusal | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if (refused := self._gate.strange(scope["method"], headers)) is not None:
            return refused
        return None if scope["path"] in _OPEN else self._gate.unknown(headers)


_ENCODED_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def _refusal(refused: DashboardRefusal) -> Response:
    return _html(plain_page("Refused", refused.message), refused.status)


def _html(text: str, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text, status, headers, "text/html; charset=utf-8")


def _enter(gate: Gate) -> Any:
    async def enter(request: Request) -> Response:
        """Take the token out of the address, and give the browser a cookie for it."""
        if not gate.opens(request.query_params.get("token", "")):
            return _refusal(DashboardRefusal(HTTPStatus.UNAUTHORIZED, "that is not the token of this server"))
        return _html(entered_page(), headers={"Set-Cookie": gate.cookie()})

    return enter


async def _page(request: Request) -> Response:
    part = request.headers.get(_PART) == "view"
    # A page that is open was told what is the newest, and asks for that; one that is opened shows how it is now.
    seen = (part and _live(request).newest) or await _live(request).fresh()
    if seen is None:
        why = _live(request).trouble or "the driver has not answered yet"
        return _html(plain_page("Nothing was seen of the machine", why), HTTPStatus.SERVICE_UNAVAILABLE)
    served: Served = request.app.state.served
    path: str = request.scope["path"]  # the address is made of the Host header as well, and not to be trusted
    try:
        events = partial(request.app.state.events.up_to, seen.newest_event)
        page = await run_in_threadpool(page_at, path, request.query_params, seen, events)
    except TrancheError as error:
        return _html(plain_page("The register cannot be read", error.message), HTTPStatus.SERVICE_UNAVAILABLE)
    if page is None:
        return _html(
            plain_page("Not found", "There is nothing at this address, or not any more."), HTTPStatus.NOT_FOUND
        )
    if part:
        return _html(str(live_part(page)))
    version = _live(request).version(seen)
    return _html(whole_page(page, path=path, machine=served.machine, version=version, taken=seen.taken))


async def _overview(request: Request) -> Response:
    """What `tranche top -o json` prints."""
    seen = await _live(request).fresh()
    if seen is None:
        return JSONResponse({}, HTTPStatus.SERVICE_UNAVAILABLE)
    return JSONResponse(document("Overview", **seen.overview))


async def _events(request: Request) -> Response:
    """What `tranche events -o json` prints, all that is kept."""
    seen = await _live(request).fresh()
    found = await run_in_threadpool(request.app.state.events.up_to, 0 if seen is None else seen.newest_event)
    return JSONResponse(document("EventList", events=found))


async def _picture(request: Request) -> Response:
    """The fleet as a file for tickets and reports, as `tranche gpus -o svg` draws it."""
    seen = await _live(request).fresh()
    if seen is None:
        return _html(
            plain_page("Nothing was seen of the machine", _live(request).trouble), HTTPStatus.SERVICE_UNAVAILABLE
        )
    caption = f"{request.app.state.served.machine}, {said_in_utc(seen.taken)}"
    drawn = draw_picture(seen.overview["gpus"], seen.overview["allocations"], caption)
    return Response(drawn, headers={"Content-Disposition": 'attachment; filename="gpus.svg"'}, media_type=_TYPES["svg"])


async def _news(request: Request) -> Response:
    """Server-sent events: which snapshot is the newest, at once when there is another one."""
    if request.method == "HEAD":
        return Response(media_type="text/event-stream")

    async def lines() -> AsyncIterator[str]:
        async for news in _live(request).news():
            yield f"event: seen\ndata: {json.dumps(news.to_dict(time.time()))}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


async def _static(request: Request) -> Response:
    return static_file(request.path_params["name"])


def static_file(name: str) -> Response:
    """A file that pages load."""
    if name == "picture.css":
        return Response(STYLE, media_type=_TYPES["css"])
    found = next((each for each in files("tranche.dashboard").joinpath("static").iterdir() if each.name == name), None)
    if found is None:
        return _html(plain_page("Not found", "There is no such file."), HTTPStatus.NOT_FOUND)
    return Response(found.read_bytes(), media_type=_TYPES[name.rpartition(".")[2]])


def _live(request: Request) -> LiveMachine:
    live: LiveMachine = request.app.state.live
    return live
