"""A machine's dashboard over HTTP, on its loopback until SIGTERM or Ctrl-C. Every request passes the gate first."""

from __future__ import annotations

import logging
import secrets
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
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

from tranche.core.errors import LedgerUnavailable, TrancheError
from tranche.dashboard.access import RefusalReason, TokenAuthenticator
from tranche.dashboard.acting.action_handler import ActionHandler, with_links
from tranche.dashboard.frame import VIEWS, entered_page, loopback_way, token_form
from tranche.dashboard.live import seen_message
from tranche.dashboard.pages import AsSaid, page_at, waste_of
from tranche.dashboard.server import BackgroundWriter, GuardedServer, guarded_config, listening
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.dashboard.watch import MachinePublisher, OpenHost, UseFile
from tranche.dashboard.web import (
    GatedRequestHandler,
    Unavailable,
    form_of,
    html,
    is_part,
    nothing,
    refusal,
)
from tranche.documents.blocks import Document
from tranche.documents.describe import said_in_utc
from tranche.documents.envelope import document
from tranche.documents.picture import draw_picture
from tranche.node.state.session import StateFolder

_KEPT = 10_000
"""As many as the register keeps."""

ReadEvents = Callable[[int], Sequence[Document]]
"""Reads the events after a position, oldest first."""
_LOOPBACK = "127.0.0.1"
_MOST_CONNECTIONS = 250
_ENTER = "/enter"
_LONGEST_FORM = 10_000  # bytes


class EventLog:
    """The register's events, read once: pages ask for them again and again. Safe to use from several threads.

    Another register may replace it, with events at the same positions. An event itself tells them apart: its time, data and words
    at its position.
    """

    def __init__(self, read: ReadEvents) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._known: list[Document] = []

    def up_to(self, newest: Document | None) -> Sequence[Document]:
        """All events of the register that has `newest`, oldest first. Reads unless `newest` is the last one known.

        `newest` is None where there was none. LedgerUnavailable when the register has been replaced since.
        """
        with self._lock:
            if newest is None or not self._known or newest != self._known[-1]:
                self._known = self._read_on()
            if newest is not None and not _has(self._known, newest):
                raise LedgerUnavailable(
                    "the ledger has been replaced since this page was loaded", hint="load the page again"
                )
            return self._known

    def _read_on(self) -> list[Document]:
        if not self._known:
            return list(self._read(0))
        # Read the last known event again: if it differs or is missing, the register was replaced.
        last = self._known[-1]
        found = list(self._read(last["position"] - 1))
        # A new list: another thread may be reading the old one.
        return [*self._known, *found[1:]][-_KEPT:] if found[:1] == [last] else list(self._read(0))


def _has(events: Sequence[Document], event: Document) -> bool:
    """Whether the event is one of these."""
    return next((each for each in reversed(events) if each["position"] <= event["position"]), None) == event


@dataclass(frozen=True, slots=True)
class MachineContext:
    """What the dashboard shows: the machine's name and files, how to open it, and how to read its events.

    `as_said` asks the MPS daemons of a view. `use` is the file that records the use of its GPUs. `open_to_act` opens the machine
    for changes; None where pages only show.
    """

    machine: str
    places: StateFolder
    open_host: OpenHost
    read_events: ReadEvents
    as_said: AsSaid
    use: UseFile
    open_to_act: OpenHost | None = None


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
            return refusal(scope, reason, "Sign in", token_form(_ENTER, "get"))
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
        action = self._actions.accepted(kind, fields, self._gate.session_of(request.headers))
        if isinstance(action, RefusalReason):
            return refusal(request.scope, action)
        seen = await self._live.fresh()
        if seen is None:
            why = f"nothing was done: {self._live.trouble or 'the driver does not answer'}"
            return refusal(request.scope, RefusalReason(HTTPStatus.SERVICE_UNAVAILABLE, why))
        answer = await run_in_threadpool(self._actions.answer, action, fields["plan"], seen)
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
        newest = None if seen is None else seen.newest_event
        return await self._of_register("EventList", lambda: {"events": self._events.up_to(newest)})

    async def _waste(self, _: Request) -> Response:
        """What the waste view shows."""
        seen = await self._seen()
        return await self._of_register("Waste", lambda: waste_of(seen, self._events.up_to(seen.newest_event)))

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

        return self.streamed(request, lines())


def _unread(error: TrancheError) -> Unavailable:
    return Unavailable("The register cannot be read", f"{error.message}.", error.reason)


def serve_dashboard(port: int, token: str, served: MachineContext, ready: Callable[[TokenAuthenticator], None]) -> None:
    """Answer on that port, or with 0 on any; calls `ready` once it takes connections."""
    with listening(_LOOPBACK, port) as listener:
        gate = TokenAuthenticator(token, listener.getsockname()[1])
        config = guarded_config(MachineRequestHandler(gate, served), _MOST_CONNECTIONS, lifespan="on")
        ready(gate)
        if sys.stderr is not None:
            logging.basicConfig(handlers=[logging.StreamHandler(BackgroundWriter(sys.stderr.fileno()))], force=True)
        # When the server has ended, Ctrl-C ends the process as SIGTERM does, without waiting for threads that a driver holds.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        GuardedServer(config).run([listener])
