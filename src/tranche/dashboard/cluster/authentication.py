"""Who asks for a cluster's page: a user known to Kubernetes. The application calls it for each request. Pure.

Browsers send a session cookie and programs send a token. A proxy, where one is set up, sends its users' names. A request that
could be two of these is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from unicodedata import category

from tranche.dashboard.access import LOOPBACK_NAMES, RefusalReason, foreign_page, name_of
from tranche.kubernetes.api.objects import RbacPermission

_SECRET_HEADER = "x-tranche-proxy-secret"
_SYSTEM = "system:"
_AUTHENTICATED = "system:authenticated"
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp"})
"""Unicode's categories of control and format characters and line ends."""
LONGEST_SECONDS = 8 * 3600.0
"""How long a session lasts. A token that expires earlier ends its session too."""
_MOST_SESSIONS = 2_000
LEAST_SECRET = 16
"""Fewer characters make a secret guessable; a shorter secret opens nothing."""
PLAIN_COOKIE, SECURE_COOKIE = "tranche-cluster", "__Host-tranche-cluster"
TWICE = RefusalReason(
    HTTPStatus.UNAUTHORIZED,
    "the request identifies its sender twice, so your session cookie was removed: load the page again",
)
"""A browser that gets this answer must forget its session, or it would repeat the request forever."""


@dataclass(frozen=True, slots=True)
class KubeUser:
    """A user as Kubernetes knows it. `token` is the user's own; "" if a proxy vouches for the user. The repr omits it."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    token: str = field(default="", repr=False)

    def question(self, right: RbacPermission) -> Mapping[str, Any]:
        """Whether the user has that right, as a SubjectAccessReview."""
        user: dict[str, Any] = {"user": self.user, "groups": list(self.groups)}
        user |= {"uid": self.uid} if self.uid else {}
        user |= {"extra": {key: list(values) for key, values in self.extra}} if self.extra else {}
        return right.review(user)


def reviewed_viewer(review: Mapping[str, Any], token: str) -> KubeUser | None:
    """The user that a TokenReview's answer names; None if it names none."""
    status = review.get("status")
    user = status.get("user") if isinstance(status, Mapping) and status.get("authenticated") is True else None
    name = user.get("username") if isinstance(user, Mapping) else None
    if not isinstance(user, Mapping) or not name:
        return None
    extra, groups = user.get("extra"), user.get("groups")
    return KubeUser(
        str(name),
        _texts(groups),
        str(user.get("uid") or ""),
        tuple(sorted((str(key), _texts(values)) for key, values in extra.items()))
        if isinstance(extra, Mapping)
        else (),
        token,
    )


def plainly_allowed(question: Mapping[str, Any], review: Mapping[str, Any]) -> bool:
    """Whether a SubjectAccessReview's answer is a yes to that question, without reservation."""
    status = review.get("status")
    return (
        isinstance(status, Mapping)
        and status.get("allowed") is True
        and status.get("denied") in (None, False)
        and not status.get("evaluationError")
        and _has(review, {"kind": question["kind"], "spec": question["spec"]})
    )


def _has(found: object, asked: object) -> bool:
    """Whether the answer contains the whole question; an API server adds fields, and leaves none out."""
    if isinstance(asked, Mapping):
        return isinstance(found, Mapping) and all(_has(found.get(key), value) for key, value in asked.items())
    return found == asked or (not found and not asked)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


@dataclass(frozen=True, slots=True)
class TrustedProxySettings:
    """A proxy in front that has authenticated its users. It proves itself with `secret`, which no one else knows."""

    secret: str = field(repr=False)
    user_header: str = "x-remote-user"
    group_header: str = "x-remote-group"


@dataclass(frozen=True, slots=True)
class RequestCredentials:
    """What a request says about its sender: one of the three."""

    token: str = field(default="", repr=False)
    session: str = field(default="", repr=False)
    viewer: KubeUser | None = None


@dataclass(frozen=True, slots=True)
class RequestAuthenticator:
    """`hosts` are the names that browsers use for the server, besides the loopback's, which `kubectl port-forward` uses."""

    hosts: frozenset[str] = frozenset()
    proxy: TrustedProxySettings | None = None

    def strange(self, method: str, headers: Mapping[str, str]) -> RefusalReason | None:
        """Why a request comes from none of our own pages. `headers` have lower-case names.

        The server speaks plain HTTP, and so do clients that use a name of the loopback. In front of `hosts` there may be an
        ingress that speaks TLS, and only a browser with a cookie from there can tell.
        """
        host = headers.get("host", "")
        if name_of(host) not in LOOPBACK_NAMES and name_of(host).lower() not in self.hosts:
            return RefusalReason(HTTPStatus.MISDIRECTED_REQUEST, "this server does not serve that host name")
        origins = [f"http://{host}", f"https://{host}"]
        if name_of(host) in LOOPBACK_NAMES:
            origins.pop()
        elif any(name == SECURE_COOKIE for name, _ in _cookies(headers.get("cookie", ""))):
            origins.pop(0)
        return foreign_page(method, headers, origins)

    def presented(self, headers: Sequence[tuple[str, str]]) -> RequestCredentials | RefusalReason:
        """Who a request claims to come from; `headers` have lower-case names, repeated as sent."""
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
        # Only this host, over TLS, can have set the first cookie; a neighbour may have set the other.
        return RequestCredentials(session=dict(kept).get(SECURE_COOKIE) or dict(kept).get(PLAIN_COOKIE, ""))

    @staticmethod
    def sessions(headers: Sequence[tuple[str, str]]) -> frozenset[str]:
        """Every session that a request names, regardless of its other headers."""
        return frozenset(session for name, value in headers if name == "cookie" for _, session in _cookies(value))

    def _of_proxy(self, headers: Sequence[tuple[str, str]]) -> KubeUser | RefusalReason | None:
        """The user whom the proxy names; None without a trusted proxy, whose headers are then ignored."""
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
            return RefusalReason(HTTPStatus.UNAUTHORIZED, "the page does not trust this proxy")
        if len(users) != 1 or not users[0]:
            return RefusalReason(HTTPStatus.UNAUTHORIZED, "the proxy does not name the user")
        user = users[0]
        if user.startswith(_SYSTEM) or any(each.startswith(_SYSTEM) or not each for each in groups):
            return RefusalReason(HTTPStatus.FORBIDDEN, "a proxy cannot vouch for Kubernetes' own accounts")
        return KubeUser(user, (*dict.fromkeys(groups), _AUTHENTICATED))


def _cookies(header: str) -> list[tuple[str, str]]:
    """Our own cookies in a Cookie header, repeated as sent."""
    pairs = (each.strip().partition("=") for each in header.split(";"))
    return [(name, value) for name, _, value in pairs if name in (PLAIN_COOKIE, SECURE_COOKIE)]


def _named(value: str) -> str:
    """The name in a header, in UTF-8 as Kubernetes reads it, stripped only as HTTP demands; "" where it is not a valid name.

    A name has no invisible characters: pages, events and logs would show a different one.
    """
    try:
        name = value.encode("latin-1").decode().strip(" \t")
    except UnicodeError:
        return ""
    return "" if any(category(each) in _UNSEEN for each in name) else name


def session_cookie(session: str, origin: str) -> str:
    """The header that lets a browser in. If the page came over TLS, the browser sends the cookie over TLS only.

    `origin` is what the browser said about the page whose form was sent. With "" for the session it deletes the cookie.
    """
    secure = origin.startswith("https://")
    name, more = (SECURE_COOKIE, "; Secure") if secure else (PLAIN_COOKIE, "")
    ended = "" if session else "; Max-Age=0"
    return f"{name}={session}; Path=/; HttpOnly; SameSite=Strict{more}{ended}"


@dataclass(frozen=True, slots=True)
class _Session:
    token: str
    began: float


class SessionStore:
    """Viewers who have entered with a token. Browsers hold the name of a session; the token stays here, in memory.

    `clock` is monotonic, in seconds.
    """

    def __init__(
        self, clock: Callable[[], float], random: Callable[[], str] = lambda: secrets.token_urlsafe(32)
    ) -> None:
        self._clock = clock
        self._random = random
        self._known: dict[bytes, _Session] = {}

    def begin(self, token: str) -> str:
        """The name of a new session. When there are too many, the oldest ends."""
        now = self._clock()
        self._known = {key: each for key, each in self._known.items() if now - each.began < LONGEST_SECONDS}
        while len(self._known) >= _MOST_SESSIONS:
            del self._known[next(iter(self._known))]
        name = self._random()
        self._known[_digest(name)] = _Session(token, now)
        return name

    def token(self, name: str) -> str:
        """The token of that session's viewer; "" without one."""
        found = self._known.get(_digest(name))
        return "" if found is None or self._clock() - found.began >= LONGEST_SECONDS else found.token

    def end(self, name: str) -> None:
        """Forget it."""
        self._known.pop(_digest(name), None)


def _digest(name: str) -> bytes:
    # Looks up by digest, so that the time it takes reveals nothing about existing names.
    return hashlib.sha256(name.encode()).digest()
