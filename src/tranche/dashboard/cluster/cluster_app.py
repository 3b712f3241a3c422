"""A cluster's page over HTTP. Whoever asks passes the gate first, and is led to the cluster as he may see it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tranche.core.errors import TrancheError
from tranche.dashboard.access import HEADERS, RefusalReason, heard
from tranche.dashboard.app import static_file
from tranche.dashboard.cluster.authentication import TWICE, RequestAuthenticator, forgotten_cookies, session_cookie
from tranche.dashboard.cluster.cluster_actions import ClusterActionHandler
from tranche.dashboard.cluster.cluster_history import ClusterHistory
from tranche.dashboard.cluster.cluster_routes import ClusterPageContext, cluster_routes
from tranche.dashboard.cluster.entering_page import login_page
from tranche.dashboard.cluster.fleet_reader import FleetReader
from tranche.dashboard.cluster.kube_reviews import FRESH_SECONDS, LIST_NODES, AccessReviewClient
from tranche.dashboard.cluster.kube_viewer import KubeUser
from tranche.dashboard.cluster.sessions import SessionStore
from tranche.dashboard.cluster.source import ClusterObservation
from tranche.dashboard.cluster.user_view import UserView, ViewerPermission
from tranche.dashboard.cluster.waste_history import WasteHistory
from tranche.dashboard.connection_limit import let_in
from tranche.dashboard.error_answer import error_answer
from tranche.dashboard.frame import entered_page

_HTML = "text/html; charset=utf-8"
_STREAM = "/live"
_LONGEST_FORM = 64 * 1024
_KEPT_SECONDS = 600.0
_MOST_VIEWPOINTS = 200
_ENCODED_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """Somebody who was let in, and the cluster as he sees it."""

    viewer: KubeUser
    user_view: UserView
    app: ASGIApp


@dataclass(slots=True)
class _Kept:
    user_view: UserView
    app: ASGIApp
    used: float


class ClusterRequestHandler:
    """The application. `take` is told what is newest; `clock` is monotonic, in seconds."""

    def __init__(
        self,
        name: str,
        entrance: RequestAuthenticator,
        reviews: AccessReviewClient,
        sessions: SessionStore,
        fleets: FleetReader,
        acts: ClusterActionHandler | None = None,
        *,
        clock: Callable[[], float],
        recheck: float = FRESH_SECONDS,
    ) -> None:
        self._name = name
        self._entrance = entrance
        self._reviews = reviews
        self._sessions = sessions
        self._fleets = fleets
        self._acts = acts
        self._clock = clock
        self._recheck = recheck
        self._seen: ClusterObservation | None = None
        self._trouble = ""
        self._namespaces: frozenset[str] = frozenset()
        self._waste = WasteHistory()
        self._past = ClusterHistory()
        self._kept: dict[ViewerPermission, _Kept] = {}

    def take(self, seen: ClusterObservation) -> None:
        """This is the newest that is known of the cluster."""
        self._seen, self._namespaces = seen, seen.namespaces
        self._waste.take(seen.snapshot)
        self._past.take(seen.snapshot, seen.trouble)
        now = self._clock()
        for rights in [each for each, kept in self._kept.items() if now - kept.used >= _KEPT_SECONDS]:
            self._kept.pop(rights).user_view.live.end()
        for kept in self._kept.values():
            kept.user_view.take(seen)

    def lose(self, why: str) -> None:
        """Nothing newer is known of the cluster, because of that."""
        self._trouble = why
        if self._seen is not None:
            self._seen = replace(self._seen, trouble=why)
        for kept in self._kept.values():
            kept.user_view.lose(why)

    def end(self) -> None:
        """End every stream."""
        for kept in self._kept.values():
            kept.user_view.live.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], *_ENCODED_HEADERS]
            await send(message)

        answer = await self._answer(scope, receive)
        if isinstance(answer, Response):
            await answer(scope, receive, send_with_headers)
            return
        let_in(scope, answer.viewer.user)
        scope["viewer"], scope["rights"] = answer.viewer, answer.user_view.rights
        try:
            if scope["path"] != _STREAM:
                await answer.app(scope, receive, send_with_headers)
                return
            cut_off = await self._while_admitted(answer, scope, receive, send_with_headers)
            if started and cut_off:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception:
            _log.exception("a page failed")
            raise

    async def _answer(self, scope: Scope, receive: Receive) -> Response | _Admitted:
        headers = heard(scope["headers"])
        if isinstance(headers, RefusalReason):
            return _refusal(scope, headers)
        if (refused := self._entrance.strange(scope["method"], headers)) is not None:
            return _refusal(scope, refused)
        path: str = scope["path"]
        if path.startswith("/static/"):
            return static_file(path.removeprefix("/static/"))
        if path == "/login":
            return await self._login(Request(scope, receive), headers.get("origin", ""))
        if path == "/leave" and scope["method"] == "POST":
            return self._left(scope, headers.get("origin", ""))
        return await self._admit(scope)

    async def _admit(self, scope: Scope) -> Response | _Admitted:
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        presented = self._entrance.presented(pairs)
        if isinstance(presented, RefusalReason):
            return _refusal(scope, presented)
        try:
            viewer = presented.viewer
            if viewer is None:
                viewer = await self._reviews.who(presented.token or self._sessions.token(presented.session))
            if viewer is None:
                said = "Send a token that Kubernetes knows: Authorization: Bearer TOKEN."
                return error_answer(scope["path"], HTTPStatus.UNAUTHORIZED, "", said, login_page())
            if self._seen is None:
                why = f"Its nodes were not read yet: {self._trouble or 'the API server has not answered'}."
                return error_answer(
                    scope["path"], HTTPStatus.SERVICE_UNAVAILABLE, "Nothing was seen of the cluster", why
                )
            sight = await self._reviews.sight(viewer, self._namespaces)
            rights = ViewerPermission(sight, await self._reviews.may(viewer, LIST_NODES))
        except TrancheError as error:
            # Whoever cannot be asked about is shown nothing; what went wrong is not his to know.
            said = (
                f"Nobody can say who you are or what you may see ({error.reason}). Nothing is shown until somebody can."
            )
            return error_answer(scope["path"], HTTPStatus.SERVICE_UNAVAILABLE, "Kubernetes does not answer", said)
        kept = self._viewpoint(rights)
        return _Admitted(viewer, kept.user_view, kept.app)

    def _viewpoint(self, rights: ViewerPermission) -> _Kept:
        found = self._kept.get(rights)
        if found is None:
            while len(self._kept) >= _MOST_VIEWPOINTS:
                oldest = min(self._kept, key=lambda each: self._kept[each].used)
                self._kept.pop(oldest).user_view.live.end()
            user_view = UserView(rights)
            if self._seen is not None:
                user_view.take(self._seen)
            context = ClusterPageContext(self._name, user_view, self._fleets, self._waste, self._past, self._acts)
            routes = cluster_routes(context)
            app = Starlette(routes=routes, exception_handlers={HTTPException: _no_such_way, Exception: _failed})
            found = self._kept[rights] = _Kept(user_view, app, 0.0)
        found.used = self._clock()
        return found

    async def _while_admitted(self, admitted: _Admitted, scope: Scope, receive: Receive, send: Send) -> bool:
        """Tell what is new while whoever listens may see the same as when he came, and whether that ended it."""
        work = asyncio.ensure_future(admitted.app(scope, receive, send))
        try:
            while True:
                done, _ = await asyncio.wait({work}, timeout=self._recheck)
                if done:
                    work.result()
                    return False
                again = await self._admit(scope)
                if isinstance(again, Response) or again.user_view is not admitted.user_view:
                    return True
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _login(self, request: Request, origin: str) -> Response:
        if request.method != "POST":
            return _html(login_page())
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > _LONGEST_FORM:
                return _html(login_page("That is no token."), HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        token = parse_qs(content.decode("latin-1")).get("token", [""])[0].strip()
        try:
            viewer = await self._reviews.who(token)
        except TrancheError:
            return _html(
                login_page("Kubernetes does not answer, so nobody can say who you are. Try again in a moment."),
                HTTPStatus.SERVICE_UNAVAILABLE,
            )
        if viewer is None:
            return _html(login_page("Kubernetes does not know this token, or it has ended."), HTTPStatus.UNAUTHORIZED)
        cookie = session_cookie(self._sessions.begin(token), origin)
        return _html(entered_page(), headers={"Set-Cookie": cookie})

    def _left(self, scope: Scope, origin: str) -> Response:
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        for session in self._entrance.sessions(pairs):
            self._sessions.end(session)
        return _html(login_page("You have left."), headers={"Set-Cookie": session_cookie("", origin)})


def _refusal(scope: Scope, refused: RefusalReason) -> Response:
    answer = error_answer(scope["path"], refused.status, "Refused", refused.message)
    for each in forgotten_cookies() if refused is TWICE else ():
        answer.headers.append("Set-Cookie", each)
    return answer


async def _no_such_way(request: Request, error: Exception) -> Response:
    status = HTTPStatus(error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR)
    return error_answer(str(request.scope["path"]), status, status.phrase, f"{status.phrase}.")


async def _failed(request: Request, error: Exception) -> Response:
    said = "This page failed; the server's log says more. The other pages may work."
    return error_answer(str(request.scope["path"]), HTTPStatus.INTERNAL_SERVER_ERROR, "It failed", said)


def _html(text: str, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, headers, _HTML)
