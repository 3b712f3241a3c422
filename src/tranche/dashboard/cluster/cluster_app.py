"""A cluster's page over HTTP, and as a process: it watches, serves until a signal, and reports its health.

Requests pass authentication first, and then reach the cluster as their viewer may see it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from tranche.core.errors import TrancheError, UsageError
from tranche.dashboard.access import RefusalReason
from tranche.dashboard.acting.forms import FormKeyStore
from tranche.dashboard.cluster.authentication import (
    LEAST_SECRET,
    TWICE,
    KubeUser,
    RequestAuthenticator,
    SessionStore,
    TrustedProxySettings,
    session_cookie,
)
from tranche.dashboard.cluster.cluster_action import ClusterActionHandler
from tranche.dashboard.cluster.cluster_routes import ClusterPages
from tranche.dashboard.cluster.kube_reviews import FRESH_SECONDS, LIST_NODES, AccessReviewClient
from tranche.dashboard.cluster.source import ClusterObservation, ClusterSource, FleetReader
from tranche.dashboard.cluster.user_view import UserView, ViewerPermission
from tranche.dashboard.frame import entered_page, plain_page, token_form
from tranche.dashboard.parts import code
from tranche.dashboard.server import GuardedServer, guarded_config, listening
from tranche.dashboard.web import error_answer, form_of, html, refusal
from tranche.documents.markup import element
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.serving.http_server import serve_health
from tranche.kubernetes.serving.supervisor import Supervisor

_STREAM = "/live"
_LONGEST_FORM = 64 * 1024
_KEPT_SECONDS = 600.0
_MOST_VIEWPOINTS = 200
_MOST_CONNECTIONS = 2_000

_log = logging.getLogger(__name__)


class ClusterRequestHandler(ClusterPages):
    """The application. `take` is given the newest state."""

    def __init__(
        self,
        name: str,
        entrance: RequestAuthenticator,
        reviews: AccessReviewClient,
        sessions: SessionStore,
        fleets: FleetReader,
        acts: ClusterActionHandler | None = None,
    ) -> None:
        entering = Route("/login", self._login, methods=["GET", "POST"])
        super().__init__(name, fleets, acts, [entering, Route("/leave", self._leave, methods=["POST"])])
        self._entrance = entrance
        self._reviews = reviews
        self._sessions = sessions
        self._seen: ClusterObservation | None = None
        self._trouble = ""
        self._views: dict[ViewerPermission, UserView] = {}

    def take(self, seen: ClusterObservation) -> None:
        """Take the newest known state of the cluster."""
        self._seen = seen
        self.waste.take(seen.snapshot)
        self.past.take(seen.snapshot, seen.trouble)
        now = time.monotonic()
        for rights in [each for each, view in self._views.items() if now - view.used >= _KEPT_SECONDS]:
            self._views.pop(rights).live.end()
        for view in self._views.values():
            view.take(seen)

    def lose(self, why: str) -> None:
        """Say why nothing newer is known of the cluster."""
        self._trouble = why
        if self._seen is not None:
            self._seen = replace(self._seen, trouble=why)
        for view in self._views.values():
            view.lose(why)

    def end(self) -> None:
        """End every stream."""
        for view in self._views.values():
            view.live.end()

    def strange(self, method: str, headers: Mapping[str, str]) -> RefusalReason | None:
        """Why a request comes from none of our pages."""
        return self._entrance.strange(method, headers)

    def refused(self, scope: Scope, reason: RefusalReason) -> Response:
        """A browser that sends two identities is told to forget its session."""
        answer = refusal(scope, reason)
        for origin in ("http://", "https://") if reason is TWICE else ():
            answer.headers.append("Set-Cookie", session_cookie("", origin))
        return answer

    async def admit(self, scope: Scope, headers: Mapping[str, str]) -> Response | str | None:
        """Admits viewers known to Kubernetes; anyone may try to enter, and leave."""
        path: str = scope["path"]
        if path.startswith("/static/") or path == "/login" or (path == "/leave" and scope["method"] == "POST"):
            return None
        admitted = await self._admitted(scope)
        if isinstance(admitted, Response):
            return admitted
        scope["viewer"], scope["view"] = admitted
        return admitted[0].user

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A stream goes on while its viewer's rights stay as they were at its start."""
        if scope["path"] != _STREAM:
            await self.app(scope, receive, send)
            return
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        work = asyncio.ensure_future(self.app(scope, receive, noted))
        try:
            while not (await asyncio.wait({work}, timeout=FRESH_SECONDS))[0]:
                again = await self._admitted(scope)
                if isinstance(again, Response) or again[1] is not scope["view"]:
                    break
            else:
                work.result()
                return
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        if started:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _admitted(self, scope: Scope) -> tuple[KubeUser, UserView] | Response:
        presented = self._entrance.presented(_headers(scope))
        if isinstance(presented, RefusalReason):
            return self.refused(scope, presented)
        try:
            viewer = presented.viewer
            if viewer is None:
                viewer = await self._reviews.who(presented.token or self._sessions.token(presented.session))
            if viewer is None:
                said = "Send a valid Kubernetes token: Authorization: Bearer TOKEN."
                return error_answer(scope, HTTPStatus.UNAUTHORIZED, "", said, _login_page())
            if self._seen is None:
                why = f"Its nodes have not been read yet: {self._trouble or 'the API server has not answered'}."
                return _unavailable(scope, "The state of the cluster is unknown", why)
            sight = await self._reviews.sight(viewer, self._seen.namespaces)
            rights = ViewerPermission(sight, await self._reviews.may(viewer, LIST_NODES))
        except TrancheError as error:
            # A viewer whose rights cannot be asked for sees nothing; only the error's class is said, not its text.
            said = f"The server cannot find out who you are or what you may see ({error.reason}). Until it can, it shows nothing."
            return _unavailable(scope, "Kubernetes does not answer", said)
        return viewer, self._view(rights)

    def _view(self, rights: ViewerPermission) -> UserView:
        """What viewers with those rights see."""
        found = self._views.get(rights)
        if found is None:
            while len(self._views) >= _MOST_VIEWPOINTS:
                oldest = min(self._views, key=lambda each: self._views[each].used)
                self._views.pop(oldest).live.end()
            found = self._views[rights] = UserView(rights)
            if self._seen is not None:
                found.take(self._seen)
        found.used = time.monotonic()
        return found

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return html(_login_page())
        fields = await form_of(request, _LONGEST_FORM)
        if fields is None:
            return html(_login_page("That is not a token."), HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        token = fields.get("token", "").strip()
        try:
            viewer = await self._reviews.who(token)
        except TrancheError:
            said = "Kubernetes does not answer, so the server cannot find out who you are. Try again in a moment."
            return html(_login_page(said), HTTPStatus.SERVICE_UNAVAILABLE)
        if viewer is None:
            return html(
                _login_page("Kubernetes does not recognise this token, or the token has expired."),
                HTTPStatus.UNAUTHORIZED,
            )
        cookie = session_cookie(self._sessions.begin(token), request.headers.get("origin", ""))
        return html(entered_page(), headers={"Set-Cookie": cookie})

    async def _leave(self, request: Request) -> Response:
        for session in self._entrance.sessions(_headers(request.scope)):
            self._sessions.end(session)
        gone = session_cookie("", request.headers.get("origin", ""))
        return html(_login_page("You have signed out."), headers={"Set-Cookie": gone})


def _login_page(trouble: str = "") -> str:
    """Asks for a token. It loads nothing."""
    said = element(
        "p",
        "This page shows what Kubernetes allows you to see. Sign in with one of your tokens, for example from  ",
        code("kubectl create token ACCOUNT -n NAMESPACE"),
        ". The server keeps it for at most eight hours, and gives your browser a cookie.",
    )
    alert = element("p", trouble, role="alert") if trouble else None
    return plain_page("Sign in", alert, said, token_form("/login", "post"))


def _headers(scope: Scope) -> list[tuple[str, str]]:
    """The headers, repeated as sent."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]


def _unavailable(scope: Scope, title: str, said: str) -> Response:
    return error_answer(scope, HTTPStatus.SERVICE_UNAVAILABLE, title, said)


async def serve_cluster_page(
    *,
    kubeconfig: str | None,
    namespace: str,
    name: str,
    host: str,
    port: int,
    health_host: str,
    health_port: int,
    hosts: Sequence[str],
    proxy_secret: Path | None,
    proxy_user_header: str,
    proxy_group_header: str,
    act: bool,
    proxy_act: bool,
) -> None:
    """Serve until SIGTERM or SIGINT.

    `namespace` is the agents'; "" means the one of the connection to the API server. `hosts` are the names that browsers use for
    the server, besides the loopback's. `proxy_secret` is the file with the secret of a proxy that vouches for its users. With
    `act`, viewers can do what Kubernetes lets them; with `proxy_act` so can viewers whom the proxy names, with the server's own
    account. KubeconfigInvalid when no API server is known, UsageError when a port is taken or the secret is invalid.
    """
    server = find_api_server(kubeconfig, os.environ)
    if act and server.tls is not None and (kubeconfig or os.environ.get("KUBECONFIG")):
        # A kubeconfig's client certificate would accompany a viewer's token, and act as the certificate's owner.
        raise UsageError("--act requires the page to run as a pod", hint="omit --kubeconfig, and unset KUBECONFIG")
    if proxy_act and not (act and proxy_secret is not None):
        raise UsageError(
            "--proxy-act requires --act and --proxy-secret",
            hint="the page trusts only a proxy that sends this secret",
        )
    entrance = RequestAuthenticator(
        frozenset(each.lower() for each in hosts), _proxy(proxy_secret, proxy_user_header, proxy_group_header)
    )
    connection = ApiConnection(server)
    namespace = namespace or server.namespace
    reviews = AccessReviewClient(connection, clock=time.monotonic)
    fleets = FleetReader(connection, namespace, clock=time.monotonic)
    acts = None
    if act:
        events = KubeClient(connection)
        acts = ClusterActionHandler(server, reviews, fleets, FormKeyStore(), events, for_proxied=proxy_act)
    app = ClusterRequestHandler(name, entrance, reviews, SessionStore(time.monotonic), fleets, acts)
    source = ClusterSource(connection, namespace, app.take, app.lose)
    supervisor = Supervisor([source], clock=time.monotonic)
    with listening(host, port) as listener:
        health = await serve_health(health_host, health_port, supervisor.readiness)
        config = guarded_config(app, _MOST_CONNECTIONS, lifespan="off")
        port = listener.getsockname()[1]
        _log.info("serving", extra={"api_server": server.url, "port": port, "health_port": health.port})
        running = asyncio.create_task(supervisor.run())
        try:
            await GuardedServer(config).serve([listener])
        finally:
            app.end()
            health.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await connection.aclose()


def _proxy(file: Path | None, user_header: str, group_header: str) -> TrustedProxySettings | None:
    """The trusted proxy, if any. An invalid secret is refused with an error rather than ignored."""
    if file is None:
        return None
    try:
        secret = file.read_text().strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"--proxy-secret {file}: cannot read it: {error}") from error
    if len(secret) < LEAST_SECRET:
        raise UsageError(
            f"--proxy-secret {file}: a secret must have at least {LEAST_SECRET} characters",
            hint="create one with: head -c 32 /dev/urandom | base64",
        )
    return TrustedProxySettings(secret, user_header.lower(), group_header.lower())
