"""A machine's dashboard over HTTP. Every request passes the gate first."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from tranche.core.errors import TrancheError
from tranche.dashboard.access import RefusalReason, TokenAuthenticator
from tranche.dashboard.acting.action_handler import ActionHandler, with_links
from tranche.dashboard.event_log import EventLog, ReadEvents
from tranche.dashboard.frame import VIEWS, entered_page
from tranche.dashboard.live import seen_message
from tranche.dashboard.pages import AsSaid, page_at, waste_of
from tranche.dashboard.refusal_page import entering_form, loopback_way
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.dashboard.use_file import UseFile
from tranche.dashboard.watch import MachinePublisher, OpenHost
from tranche.dashboard.web import (
    GatedRequestHandler,
    Unavailable,
    form_of,
    html,
    is_part,
    nothing,
    refusal,
)
from tranche.documents.describe import said_in_utc
from tranche.documents.envelope import document
from tranche.documents.picture import draw_picture
from tranche.node.state.session import StateFolder

_ENTER = "/enter"
_LONGEST_FORM = 10_000  # bytes


@dataclass(frozen=True, slots=True)
class MachineContext:
    """What the dashboard shows: the machine's name and files, how to open it, and how to read its events.

    `as_said` asks the MPS daemons of a view. `open_to_act` opens the machine for changes; None where pages only show. `use` is
    the file that records the use of its GPUs, if any.
    """

    machine: str
    places: StateFolder
    open_host: OpenHost
    read_events: ReadEvents
    as_said: AsSaid
    open_to_act: OpenHost | None = None
    use: UseFile | None = None


class MachineRequestHandler(GatedRequestHandler):
    """The application; its lifespan starts and ends the watch. `gate` knows the token."""

    views = VIEWS
    unseen = "the driver does not answer"

    def __init__(self, gate: TokenAuthenticator, served: MachineContext) -> None:
        super().__init__(
            served.machine,
            [
                Route(_ENTER, self._enter),
                Route("/live", self._news),
                Route("/api/overview", self._overview),
                Route("/api/events", self._event_list),
                Route("/api/waste", self._waste),
                Route("/picture.svg", self._picture),
                Route("/act/{kind}", self._act, methods=["POST"]),
                Route("/{path:path}", self._page),
            ],
            self._running,
        )
        self._gate = gate
        self._served = served
        self._live = MachinePublisher(served.open_host, served.use)
        self._events = EventLog(served.read_events)
        self._actions = ActionHandler(served.places, served.open_to_act, self._live.touch)

    @asynccontextmanager
    async def _running(self, _: Starlette) -> AsyncIterator[None]:
        self._live.start()
        try:
            yield
        finally:
            await self._live.stop()

    def strange(self, method: str, headers: Mapping[str, str]) -> RefusalReason | None:
        """Why a request is not from one of our pages."""
        return self._gate.strange(method, headers)

    async def admit(self, scope: Scope, headers: Mapping[str, str]) -> Response | str | None:
        """Admits requests with the token or its cookie; anyone may try to enter."""
        if scope["path"] == _ENTER:
            return None
        refused = self._gate.unknown(headers)
        return "" if refused is None else self.refused(scope, refused)

    def refused(self, scope: Scope, reason: RefusalReason) -> Response:
        """The refusal, with the token's form or a link by a name of this server."""
        if reason.status is HTTPStatus.UNAUTHORIZED:
            return refusal(scope, reason, "Sign in", entering_form())
        if reason.status is HTTPStatus.MISDIRECTED_REQUEST:
            sent = (value.decode("latin-1") for name, value in scope["headers"] if name == b"host")
            return refusal(scope, reason, way=loopback_way(next(sent, "")))
        return refusal(scope, reason)

    async def _seen(self) -> MachineSnapshot:
        """The machine as it is now, or as last seen."""
        seen = await self._live.fresh()
        if seen is None:
            why = self._live.trouble or "the driver has not answered yet"
            raise Unavailable("The machine's state is unknown", f"{why}.")
        return seen

    async def _enter(self, request: Request) -> Response:
        """Take the token out of the address, and give the browser a cookie for it."""
        if not self._gate.opens(request.query_params.get("token", "")):
            reason = RefusalReason(HTTPStatus.UNAUTHORIZED, "that token is not valid for this server")
            return self.refused(request.scope, reason)
        return html(entered_page(), headers={"Set-Cookie": self._gate.cookie(secrets.token_hex(16))})

    async def _page(self, request: Request) -> Response:
        live, part = self._live, is_part(request)
        path: str = request.scope["path"]  # the address includes the Host header, which cannot be trusted
        # An open page was told the newest version and asks for that; a newly opened page shows the machine as it is now. No
        # driver knows how far an operation begun here is.
        seen = ((part or path.startswith("/actions/")) and live.newest) or await self._seen()
        version = live.version(seen)
        query, session = request.query_params, self._gate.session_of(request.headers)
        try:
            events = partial(self._events.up_to, seen.newest_event)
            page = await run_in_threadpool(self._actions.page, path, query, seen, session, part=part)
            page = page or await run_in_threadpool(page_at, path, query, seen, events, self._served.as_said)
        except TrancheError as error:
            raise _unread(error) from error
        if page is None:
            return nothing(request)
        if isinstance(page, str):
            return RedirectResponse(page, HTTPStatus.SEE_OTHER)
        page = with_links(page, path, query, seen) if self._actions.acts else page
        return self.shown(request, page, live, seen, version)

    async def _act(self, request: Request) -> Response:
        """Do what an accepted form asks for; the answer leads to the outcome."""
        kind = str(request.path_params["kind"])
        fields = await form_of(request, _LONGEST_FORM) or {}
        if (refused := self._actions.refusal(kind, fields, self._gate.session_of(request.headers))) is not None:
            return refusal(request.scope, refused)
        seen = await self._live.fresh()
        if seen is None:
            why = f"nothing was done: {self._live.trouble or 'the driver does not answer'}"
            return refusal(request.scope, RefusalReason(HTTPStatus.SERVICE_UNAVAILABLE, why))
        answer = await run_in_threadpool(self._actions.answer, kind, fields, seen)
        if isinstance(answer, RefusalReason):
            return refusal(request.scope, answer)
        return RedirectResponse(answer, HTTPStatus.SEE_OTHER)

    async def _overview(self, _: Request) -> Response:
        """What `tranche top -o json` prints."""
        seen = await self._seen()
        return JSONResponse(document("Overview", **seen.overview))

    async def _event_list(self, _: Request) -> Response:
        """What `tranche events -o json` prints: all events kept."""
        seen = await self._live.fresh()

        def found() -> Mapping[str, Any]:
            return {"events": self._events.up_to(None if seen is None else seen.newest_event)}

        return await self._of_register("EventList", found)

    async def _waste(self, _: Request) -> Response:
        """What the waste view shows."""
        seen = await self._seen()

        def found() -> Mapping[str, Any]:
            return waste_of(seen, self._events.up_to(seen.newest_event))

        return await self._of_register("Waste", found)

    async def _of_register(self, kind: str, fields: Callable[[], Mapping[str, Any]]) -> Response:
        """A document made from the register, or why the register cannot be read."""
        try:
            return JSONResponse(document(kind, **await run_in_threadpool(fields)))
        except TrancheError as error:
            raise _unread(error) from error

    async def _picture(self, _: Request) -> Response:
        """The fleet as a file for tickets and reports, as `tranche gpus -o svg` draws it."""
        seen = await self._seen()
        drawn = draw_picture(
            seen.overview["gpus"], seen.overview["allocations"], f"{self._served.machine}, {said_in_utc(seen.taken)}"
        )
        saved = {"Content-Disposition": 'attachment; filename="gpus.svg"'}
        return Response(drawn, headers=saved, media_type="image/svg+xml")

    async def _news(self, request: Request) -> Response:
        """Server-sent events that tell at once which snapshot is the newest."""

        async def lines() -> AsyncGenerator[str, None]:
            async with aclosing(self._live.news()) as every:
                async for news in every:
                    yield seen_message(news, time.time())

        return self._streams.answer(request, lines())


def _unread(error: TrancheError) -> Unavailable:
    return Unavailable("The register cannot be read", f"{error.message}.", error.reason)
