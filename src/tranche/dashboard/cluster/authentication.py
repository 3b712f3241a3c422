"""Who may ask a cluster's page at all, by the headers of a request, and as whom. Pure; the application asks for each request.

Browsers come with the cookie of a session, programs with a token, and where it was set up so a proxy that knows its users with
their names. A request that could be two of these is refused.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from unicodedata import category

from tranche.dashboard.access import LOOPBACK_NAMES, RefusalReason, foreign_page, name_of
from tranche.dashboard.cluster.kube_viewer import KubeUser

_SECRET_HEADER = "x-tranche-proxy-secret"
_SYSTEM = "system:"
_AUTHENTICATED = "system:authenticated"
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp"})
"""Control and format characters and ends of lines, as Unicode calls them."""
LEAST_SECRET = 16
"""Characters without which a secret can be guessed, and opens nothing."""
PLAIN_COOKIE, SECURE_COOKIE = "tranche-cluster", "__Host-tranche-cluster"
TWICE = RefusalReason(
    HTTPStatus.UNAUTHORIZED,
    "the request says twice who asks; what your browser kept of when you entered is taken away: load the page again",
)
"""A browser that is told this is to forget its session: else it would say so for ever."""


@dataclass(frozen=True, slots=True)
class TrustedProxySettings:
    """A proxy in front that has asked who its users are. `secret` is what it shows for itself, and nobody else can."""

    secret: str = field(repr=False)
    user_header: str = "x-remote-user"
    group_header: str = "x-remote-group"


@dataclass(frozen=True, slots=True)
class RequestCredentials:
    """What a request shows of who asks: one of the three."""

    token: str = field(default="", repr=False)
    session: str = field(default="", repr=False)
    viewer: KubeUser | None = None


@dataclass(frozen=True, slots=True)
class RequestAuthenticator:
    """`hosts` are the names by which browsers call the server, beside the loopback's, which `kubectl port-forward` uses."""

    hosts: frozenset[str] = frozenset()
    proxy: TrustedProxySettings | None = None

    def strange(self, method: str, headers: Mapping[str, str]) -> RefusalReason | None:
        """Why a request is not one of our own pages'; `headers` have lower-case names.

        The server speaks plain HTTP, and so does whoever calls it by a name of the loopback. Before one of `hosts` there may be
        an ingress that speaks TLS, and only a browser that has its cookie from there says so.
        """
        host = headers.get("host", "")
        if not self._called(host):
            return RefusalReason(HTTPStatus.MISDIRECTED_REQUEST, "this server is not called that")
        origins = [f"http://{host}", f"https://{host}"]
        if name_of(host) in LOOPBACK_NAMES:
            origins.pop()
        elif any(name == SECURE_COOKIE for name, _ in _cookies(headers.get("cookie", ""))):
            origins.pop(0)
        return foreign_page(method, headers, origins)

    def presented(self, headers: Sequence[tuple[str, str]]) -> RequestCredentials | RefusalReason:
        """As whom a request comes; `headers` have lower-case names, each as often as it was sent."""
        named = [value for name, value in headers if name == "authorization"]
        scheme, _, token = (named[0] if len(named) == 1 else "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        users = self._of_proxy(headers)
        if isinstance(users, RefusalReason):
            return users
        kept = [each for name, value in headers if name == "cookie" for each in _cookies(value)]
        if len(named) + (users is not None) + bool(kept) > 1 or len(dict(kept)) < len(kept):
            return TWICE
        if users is not None:
            return RequestCredentials(viewer=users)
        if named and not bearer:
            return RefusalReason(HTTPStatus.UNAUTHORIZED, "send a token: Authorization: Bearer TOKEN")
        if bearer:
            return RequestCredentials(token=bearer)
        # Nobody but this host, over TLS, can have given a browser the first; the other may be of a neighbour.
        return RequestCredentials(session=dict(kept).get(SECURE_COOKIE) or dict(kept).get(PLAIN_COOKIE, ""))

    @staticmethod
    def sessions(headers: Sequence[tuple[str, str]]) -> frozenset[str]:
        """Every session that a request names, whatever else it says."""
        return frozenset(session for name, value in headers if name == "cookie" for _, session in _cookies(value))

    def _called(self, host: str) -> bool:
        name = name_of(host)
        return name in LOOPBACK_NAMES or name.lower() in self.hosts

    def _of_proxy(self, headers: Sequence[tuple[str, str]]) -> KubeUser | RefusalReason | None:
        """Whom the proxy names; None where no proxy is trusted, and what one would say counts for nothing."""
        if self.proxy is None:
            return None
        shown = [value for name, value in headers if name == _SECRET_HEADER]
        users = [_named(value) for name, value in headers if name == self.proxy.user_header]
        groups = [_named(value) for name, value in headers if name == self.proxy.group_header]
        if not (shown or users or groups):
            return None
        secret = self.proxy.secret
        right = len(secret) >= LEAST_SECRET and len(shown) == 1
        if not right or not hmac.compare_digest(shown[0].encode("latin-1", "replace"), secret.encode()):
            return RefusalReason(HTTPStatus.UNAUTHORIZED, "the proxy is not the one that is trusted")
        if len(users) != 1 or not users[0]:
            return RefusalReason(HTTPStatus.UNAUTHORIZED, "the proxy does not say who asks")
        user = users[0]
        if user.startswith(_SYSTEM) or any(each.startswith(_SYSTEM) or not each for each in groups):
            return RefusalReason(HTTPStatus.FORBIDDEN, "a proxy vouches for nobody of Kubernetes' own")
        return KubeUser(user, (*dict.fromkeys(groups), _AUTHENTICATED))


def _cookies(header: str) -> list[tuple[str, str]]:
    """Our own in a Cookie header, each as often as it is there."""
    pairs = (each.strip().partition("=") for each in header.split(";"))
    return [(name, value) for name, _, value in pairs if name in (PLAIN_COOKIE, SECURE_COOKIE)]


def _named(value: str) -> str:
    """The name in a header, in UTF-8 as Kubernetes reads it, without more taken off than HTTP does; "" where it is none.

    What cannot be seen is in no name: pages, events and logs would show another one.
    """
    try:
        name = value.encode("latin-1").decode().strip(" \t")
    except UnicodeError:
        return ""
    return "" if any(category(each) in _UNSEEN for each in name) else name


def forgotten_cookies() -> list[str]:
    """The headers that take both cookies away."""
    return [session_cookie("", origin) for origin in ("http://", "https://")]


def session_cookie(session: str, origin: str) -> str:
    """The header that lets a browser in; where the page came over TLS, the cookie goes over nothing else.

    `origin` is what the browser said of the page whose form was sent. With "" for the session it takes the cookie away.
    """
    secure = origin.startswith("https://")
    name, more = (SECURE_COOKIE, "; Secure") if secure else (PLAIN_COOKIE, "")
    ended = "" if session else "; Max-Age=0"
    return f"{name}={session}; Path=/; HttpOnly; SameSite=Strict{more}{ended}"
