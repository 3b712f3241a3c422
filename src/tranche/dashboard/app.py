"""The addresses of the dashboard over HTTP. Whoever asks passes the gate first; every answer carries its headers."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tranche.core.errors import TrancheError
from tranche.dashboard.access import HEADERS, RefusalReason, TokenAuthenticator, heard
from tranche.dashboard.acting.action_handler import ActionHandler
from tranche.dashboard.acting.links import with_ways
from tranche.dashboard.connection_limit import let_in
from tranche.dashboard.error_answer import error_answer
from tranche.dashboard.event_log import EventLog, ReadEvents
from tranche.dashboard.frame import entered_page, live_part, whole_page
from tranche.dashboard.live import MachinePublisher
from tranche.dashboard.open_streams import StreamTracker
from tranche.dashboard.pages import AsSaid, page_at, waste_of
from tranche.dashboard.refusal_page import entering_form, loopback_way, refusal_page
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.dashboard.use_file import UseFile
from tranche.dashboard.watch import OpenHost
from tranche.documents.describe import said_in_utc
from tranche.documents.envelope import document
from tranche.documents.picture import draw_picture
from tranche.documents.picture_style import STYLE
from tranche.node.state.session import StateFolder

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_OPEN = frozenset({"/enter"})
_PART = "tranche-part"
_LONGEST_FORM = 10_000  # bytes
_MOST_FIELDS = 20

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MachineContext:
    """What the dashboard is of: the machine's name and its files, how to open it, and how to read its events.

    `as_said` asks the MPS daemons of a view. `open_to_act` opens it to change it; None where pages only show. `use` is
    where the use of its GPUs is written down, if anywhere.
    """

    machine: str
    places: StateFolder
    open_host: OpenHost
    read_events: ReadEvents
    as_said: AsSaid
    open_to_act: OpenHost | None = None
    use: UseFile | None = None


def dashboard_app(gate: TokenAuthenticator, served: MachineContext) -> ASGIApp:
    """The application behind the gate; its lifespan begins and ends the watch."""
    routes = [
        Route("/enter", _enter(gate)),
        Route("/live", _news),
        Route("/api/overview", _overview),
        Route("/api/events", _events),
        Route("/api/waste", _waste),
        Route("/picture.svg", _picture),
        Route("/static/{name}", _static),
        Route("/act/{kind}", _act, methods=["POST"]),
        Route("/{path:path}", _page),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.served, app.state.live = served, MachinePublisher(served.open_host, served.use)
        app.state.events, app.state.gate = EventLog(served.read_events), gate
        app.state.streams = StreamTracker()
        app.state.action_handler = ActionHandler(served.places, served.open_to_act, app.state.live.touch)
        app.state.live.start()
        try:
            yield
        finally:
            await app.state.live.end()

    handlers = {HTTPException: _no_such_way, Exception: _failed}
    return _GateKeeper(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers), gate)


class _GateKeeper:
    """Stands before everything, also before what answers when a page fails."""

    def __init__(self, app: ASGIApp, gate: TokenAuthenticator) -> None:
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

        if (refused := self._refused(scope)) is not None:
            await _refusal(scope, refused)(scope, receive, send_with_headers)
            return
        if scope["path"] in _OPEN:
            await self._app(scope, receive, send_with_headers)
            return
        let_in(scope)
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            _LOG.exception("a page failed")
            raise

    def _refused(self, scope: Scope) -> RefusalReason | None:
        headers = heard(scope["headers"])
        if isinstance(headers, RefusalReason):
            return headers
        if (refused := self._gate.strange(scope["method"], headers)) is not None:
            return refused
        return None if scope["path"] in _OPEN else self._gate.unknown(headers)


_ENCODED_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def _refusal(scope: Scope, refused: RefusalReason) -> Response:
    """What was refused, and the way on from there."""
    title, way, path = "Refused", None, scope["path"]
    if refused.status is HTTPStatus.UNAUTHORIZED:
        title, way = "Who are you?", entering_form()
    elif refused.status is HTTPStatus.MISDIRECTED_REQUEST:
        sent = (value.decode("latin-1") for name, value in scope["headers"] if name == b"host")
        way = loopback_way(next(sent, ""))
    said = f"{refused.message[:1].upper()}{refused.message[1:]}."
    return error_answer(path, refused.status, title, said, refusal_page(title, said, way))


async def _no_such_way(request: Request, error: Exception) -> Response:
    status = HTTPStatus(error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR)
    return error_answer(request.scope["path"], status, status.phrase, f"{status.phrase}.")


async def _failed(request: Request, error: Exception) -> Response:
    said = "This page failed; the server's log says more. The other pages may work."
    return error_answer(request.scope["path"], HTTPStatus.INTERNAL_SERVER_ERROR, "It failed", said)


def _unavailable(request: Request, title: str, why: str, reason: str = "") -> Response:
    return error_answer(request.scope["path"], HTTPStatus.SERVICE_UNAVAILABLE, title, f"{why}.", reason=reason)


def _unread(request: Request, error: TrancheError) -> Response:
    return _unavailable(request, "The register cannot be read", error.message, error.reason)


def _unseen(request: Request) -> Response:
    why = _live(request).trouble or "the driver has not answered yet"
    return _unavailable(request, "Nothing was seen of the machine", why)


def _html(text: str, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text, status, headers, "text/html; charset=utf-8")


def _enter(gate: TokenAuthenticator) -> Any:
    async def enter(request: Request) -> Response:
        """Take the token out of the address, and give the browser a cookie for it."""
        if not gate.opens(request.query_params.get("token", "")):
            refused = RefusalReason(HTTPStatus.UNAUTHORIZED, "that is not the token of this server")
            return _refusal(request.scope, refused)
        return _html(entered_page(), headers={"Set-Cookie": gate.cookie(secrets.token_hex(16))})

    return enter


async def _page(request: Request) -> Response:
    live, handler = _live(request), _action_handler(request)
    part = request.headers.get(_PART) == "view"
    path: str = request.scope["path"]  # the address is made of the Host header as well, and not to be trusted
    # A page that is open was told what is the newest, and asks for that; one that is opened shows how it is now. How far
    # something is that was begun here, no driver knows.
    seen = ((part or path.startswith("/actions/")) and live.newest) or await live.fresh()
    if seen is None:
        return _unseen(request)
    served: MachineContext = request.app.state.served
    version = live.version(seen)
    query, session = request.query_params, _session(request)
    try:
        events = partial(request.app.state.events.up_to, seen.newest_event)
        page = await run_in_threadpool(handler.page, path, query, seen, session, part=part)
        page = page or await run_in_threadpool(page_at, path, query, seen, events, served.as_said)
    except TrancheError as error:
        return _unread(request, error)
    if page is None:
        said = "There is nothing at this address, or not any more."
        return error_answer(path, HTTPStatus.NOT_FOUND, "Not found", said)
    if isinstance(page, str):
        return RedirectResponse(page, HTTPStatus.SEE_OTHER)
    page = with_ways(page, path, query, seen) if handler.acts else page
    if part:
        return _html(str(live_part(page)))
    return _html(whole_page(page, path=path, machine=served.machine, version=version, taken=seen.taken))


async def _act(request: Request) -> Response:
    """Do what a form asks for, when it counts; the answer leads to where one sees what came of it."""
    handler, kind = _action_handler(request), str(request.path_params["kind"])
    fields = await _form(request)
    if (refused := handler.refusal(kind, fields, _session(request))) is not None:
        return _refusal(request.scope, refused)
    seen = await _live(request).fresh()
    if seen is None:
        why = f"nothing was done: {_live(request).trouble or 'the driver does not answer'}"
        return _refusal(request.scope, RefusalReason(HTTPStatus.SERVICE_UNAVAILABLE, why))
    answer = await run_in_threadpool(handler.answer, kind, fields, seen)
    if isinstance(answer, RefusalReason):
        return _refusal(request.scope, answer)
    return RedirectResponse(answer, HTTPStatus.SEE_OTHER)


async def _form(request: Request) -> Mapping[str, str]:
    """The fields of a form; none where it is none, or longer than any of ours."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _LONGEST_FORM:
            return {}
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=_MOST_FIELDS))
    except ValueError:
        return {}


async def _overview(request: Request) -> Response:
    """What `tranche top -o json` prints."""
    seen = await _live(request).fresh()
    if seen is None:
        return _unseen(request)
    return JSONResponse(document("Overview", **seen.overview))


async def _events(request: Request) -> Response:
    """What `tranche events -o json` prints, all that is kept."""
    seen = await _live(request).fresh()

    def found() -> Mapping[str, Any]:
        return {"events": request.app.state.events.up_to(None if seen is None else seen.newest_event)}

    return await _of_register(request, "EventList", found)


async def _waste(request: Request) -> Response:
    """What the view of waste shows."""
    seen = await _live(request).fresh()
    if seen is None:
        return _unseen(request)

    def found() -> Mapping[str, Any]:
        return waste_of(seen, request.app.state.events.up_to(seen.newest_event))

    return await _of_register(request, "Waste", found)


async def _of_register(request: Request, kind: str, fields: Callable[[], Mapping[str, Any]]) -> Response:
    """A document of what the register keeps, or why it cannot be read."""
    try:
        return JSONResponse(document(kind, **await run_in_threadpool(fields)))
    except TrancheError as error:
        return _unread(request, error)


async def _picture(request: Request) -> Response:
    """The fleet as a file for tickets and reports, as `tranche gpus -o svg` draws it."""
    seen = await _live(request).fresh()
    if seen is None:
        return _unseen(request)
    drawn = draw_picture(seen.overview["gpus"], seen.overview["allocations"], _caption(request, seen))
    saved = {"Content-Disposition": 'attachment; filename="gpus.svg"'}
    return Response(drawn, headers=saved, media_type=_TYPES["svg"])


def _caption(request: Request, seen: MachineSnapshot) -> str:
    return f"{request.app.state.served.machine}, {said_in_utc(seen.taken)}"


async def _news(request: Request) -> Response:
    """Server-sent events: which snapshot is the newest, at once when there is another one."""
    if request.method == "HEAD":
        return Response(media_type="text/event-stream")

    async def lines() -> AsyncGenerator[str, None]:
        async with aclosing(_live(request).news()) as every:
            async for news in every:
                yield f"event: seen\ndata: {json.dumps(news.to_dict(time.time()))}\n\n"

    streams: StreamTracker = request.app.state.streams
    return StreamingResponse(streams.told(request.headers.get("cookie", ""), lines()), media_type="text/event-stream")


async def _static(request: Request) -> Response:
    return static_file(request.path_params["name"])


def static_file(name: str) -> Response:
    """A file that pages load."""
    if name == "picture.css":
        return Response(STYLE, media_type=_TYPES["css"])
    found = next((each for each in files("tranche.dashboard").joinpath("static").iterdir() if each.name == name), None)
    if found is None:
        return error_answer("", HTTPStatus.NOT_FOUND, "Not found", "There is no such file.")
    return Response(found.read_bytes(), media_type=_TYPES[name.rpartition(".")[2]])


def _live(request: Request) -> MachinePublisher:
    live: MachinePublisher = request.app.state.live
    return live


def _action_handler(request: Request) -> ActionHandler:
    handler: ActionHandler = request.app.state.action_handler
    return handler


def _session(request: Request) -> str:
    gate: TokenAuthenticator = request.app.state.gate
    return gate.session_of(request.headers)
