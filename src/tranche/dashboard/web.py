"""The HTTP that the pages of a machine and of a cluster share: the gate, forms, parts of pages, streams, refusals."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from http import HTTPStatus
from importlib.resources import files
from typing import ClassVar
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from tranche.dashboard.access import HEADERS, RefusalReason, heard
from tranche.dashboard.connection_limit import let_in
from tranche.dashboard.frame import DashboardPage, live_part, refusal_page, whole_page
from tranche.dashboard.live import Publisher, Seen
from tranche.documents.envelope import document
from tranche.documents.markup import Element
from tranche.documents.picture import STYLE

_HTML = "text/html; charset=utf-8"
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_EVENTS = "text/event-stream"
_FOR_PROGRAMS = "/api/"
_MOST_FIELDS = 20
_ENCODED_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

MOST_STREAMS = 4
"""Per browser: over HTTP/1.1 it keeps six connections to a server; two are left for pages, and for those told in turns."""
_TURN_MILLISECONDS = 2_000
_IN_TURNS = f"retry: {_TURN_MILLISECONDS}\nevent: turns\ndata: {MOST_STREAMS}\n\n"

_LOG = logging.getLogger(__name__)

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]
"""What an application does while it serves."""


class GatedRequestHandler(ABC):
    """The application of these routes. The gate comes before everything, including the error handlers."""

    views: ClassVar[Sequence[tuple[str, str]]]
    """The views that every page links to, by address and word."""
    unseen: ClassVar[str]
    """What it means that nothing newer is seen."""

    def __init__(
        self,
        name: str,
        routes: Sequence[Route],
        lifespan: Lifespan | None = None,
    ) -> None:
        """`name` of the machine or the cluster is on every page."""
        self._name = name
        self._open: Counter[tuple[str, str]] = Counter()
        self.app = Starlette(
            routes=[Route("/static/{name}", _static), *routes],
            lifespan=lifespan,
            exception_handlers={HTTPException: _no_such_way, Unavailable: _unavailable, Exception: _failed},
        )

    @abstractmethod
    def strange(self, method: str, headers: Mapping[str, str]) -> RefusalReason | None:
        """Why a request is not from one of our pages; `headers` have lower-case names."""

    @abstractmethod
    async def admit(self, scope: Scope, headers: Mapping[str, str]) -> Response | str | None:
        """The sender's name, with the scope made ready; the answer that refuses it; or None for what anyone may ask."""

    def refused(self, scope: Scope, reason: RefusalReason) -> Response:
        """The answer to a refused request."""
        return refusal(scope, reason)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an admitted request."""
        await self.app(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every answer carries the headers."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_ENCODED_HEADERS]
            await send(message)

        answer = await self._judged(scope)
        if isinstance(answer, Response):
            await answer(scope, receive, send_with_headers)
        elif answer is None:
            await self.app(scope, receive, send_with_headers)
        else:
            let_in(scope, answer)
            scope["sender"] = answer
            try:
                await self.serve(scope, receive, send_with_headers)
            except Exception:
                _LOG.exception("a page failed")
                raise

    def shown(
        self,
        request: Request,
        page: DashboardPage,
        live: Publisher[Seen],
        seen: Seen,
        version: str,
        status: HTTPStatus = HTTPStatus.OK,
    ) -> Response:
        """The page of what was seen, or the part of it that changes."""
        headers = {"Tranche-Version": version}
        if is_part(request):
            # An open page says why its plan no longer holds; its live update has not failed.
            return html(str(live_part(page)), headers=headers)
        text = whole_page(
            page,
            path=request.scope["path"],
            machine=self._name,
            version=version,
            taken=seen.taken,
            views=self.views,
            trouble=live.trouble,
            unseen=self.unseen,
        )
        return html(text, status, headers)

    def streamed(self, request: Request, messages: AsyncGenerator[str, None]) -> Response:
        """The messages as server-sent events."""
        if request.method == "HEAD":
            return Response(media_type=_EVENTS)
        # Those whom a proxy names may share its cookie, and do not share their streams.
        browser = request.scope["sender"], request.headers.get("cookie", "")
        return StreamingResponse(self._told(browser, messages), media_type=_EVENTS)

    async def _told(self, browser: tuple[str, str], messages: AsyncGenerator[str, None]) -> AsyncIterator[str]:
        """Messages to a page of the sender's browser with this cookie; "" is a program, which may open any number.

        A browser with enough streams gets the newest message and no more, then asks again by itself.
        """
        async with aclosing(messages):
            if browser[1] and self._open[browser] >= MOST_STREAMS:
                async for each in messages:
                    yield _IN_TURNS + each
                    return
            self._open[browser] += 1
            try:
                async for each in messages:
                    yield each
            finally:
                self._open[browser] -= 1
                if not self._open[browser]:
                    del self._open[browser]

    async def _judged(self, scope: Scope) -> Response | str | None:
        headers = heard(scope["headers"])
        if isinstance(headers, RefusalReason):
            return self.refused(scope, headers)
        if (reason := self.strange(scope["method"], headers)) is not None:
            return self.refused(scope, reason)
        return await self.admit(scope, headers)


class Unavailable(Exception):
    """What a page is made of is not available now: `said` says why, `reason` says it to programs in one word."""

    def __init__(self, title: str, said: str, reason: str = "") -> None:
        super().__init__(said)
        self.title, self.said, self.reason = title, said, reason


def is_part(request: Request) -> bool:
    """Whether an open page's script asks for the part that changes."""
    return request.headers.get("tranche-part") == "view"


def html(text: str, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    """A page as an answer."""
    return Response(text, status, headers, _HTML)


async def form_of(request: Request, longest: int) -> Mapping[str, str] | None:
    """The fields of a form; None where the content is not a form, or longer than any of ours."""
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > longest:
            return None
    try:
        return {name: values[0] for name, values in parse_qs(content.decode(), max_num_fields=_MOST_FIELDS).items()}
    except ValueError:
        return None


def error_answer(
    scope: Scope, status: HTTPStatus, title: str, said: str, way: Element | str | None = None, *, reason: str = ""
) -> Response:
    """Why a request fails: for people a page, which is `way` or links onward by it; for programs a document.

    A document has a `reason`; by default the status' own word, such as `ServiceUnavailable`.
    """
    if scope["path"].startswith(_FOR_PROGRAMS):
        word = reason or status.phrase.title().replace(" ", "").replace("-", "")
        return JSONResponse(document("Error", reason=word, status=status.value, message=said), status)
    return html(way if isinstance(way, str) else refusal_page(title, said, way), status)


def refusal(scope: Scope, reason: RefusalReason, title: str = "Refused", way: Element | None = None) -> Response:
    """The refusal, and a link onward."""
    return error_answer(scope, reason.status, title, f"{reason.message[:1].upper()}{reason.message[1:]}.", way)


def nothing(request: Request, said: str = "There is nothing at this address.") -> Response:
    """The answer where there is no such page."""
    return error_answer(request.scope, HTTPStatus.NOT_FOUND, "Not found", said)


async def _static(request: Request) -> Response:
    """A file that pages load."""
    name = request.path_params["name"]
    if name == "picture.css":
        return Response(STYLE, media_type=_TYPES["css"])
    found = next((each for each in files("tranche.dashboard").joinpath("static").iterdir() if each.name == name), None)
    if found is None:
        return error_answer(request.scope, HTTPStatus.NOT_FOUND, "Not found", "There is no such file.")
    return Response(found.read_bytes(), media_type=_TYPES[name.rpartition(".")[2]])


async def _no_such_way(request: Request, error: Exception) -> Response:
    status = HTTPStatus(error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR)
    return error_answer(request.scope, status, status.phrase, f"{status.phrase}.")


async def _unavailable(request: Request, error: Exception) -> Response:
    assert isinstance(error, Unavailable)
    status = HTTPStatus.SERVICE_UNAVAILABLE
    return error_answer(request.scope, status, error.title, error.said, reason=error.reason)


async def _failed(request: Request, error: Exception) -> Response:
    said = "This page failed; see the server's log. Other pages may work."
    return error_answer(request.scope, HTTPStatus.INTERNAL_SERVER_ERROR, "It failed", said)
