"""Who is let in: requests with the token, from our own pages, by a name of this machine. Pure; `app` asks for each request.

Other users of the machine can reach its loopback, and so can every page open in the owner's browser. The token keeps out the
users. A foreign page cannot read the token, gets no cookie sent (SameSite), and is refused by its origin and the name it calls
us.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie

from tranche.dashboard.frame import STYLE_HASH

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_CHANGES_NOTHING = frozenset({"GET", "HEAD"})
_SAID_ONCE = frozenset({"authorization", "cookie", "host", "origin"})
_OF_BROWSERS = "sec-fetch-"
_LAST_PORT = 65535
_OUR_OWN = frozenset({"none", "same-origin"})
"""What browsers say about a request that the user typed in or one of our pages made. Another port of this host is `same-site`."""

WITH_THE_TOKEN = "token"
"""The session of programs, which send the token and no cookie."""

HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'self'; style-src 'self' {STYLE_HASH}; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer: no script but ours, no framing, no caching.

With no referrer at all, browsers would send our own forms without their origin.
"""


@dataclass(frozen=True, slots=True)
class RefusalReason:
    """Why a request is refused."""

    status: HTTPStatus
    message: str


def heard(sent: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str] | RefusalReason:
    """A request's headers by name.

    Refuses a request that states its sender or origin twice: two readers may each believe a different one.
    """
    headers: dict[str, str] = {}
    for name, value in ((name.decode("latin-1"), value.decode("latin-1")) for name, value in sent):
        if name in headers and (name in _SAID_ONCE or name.startswith(_OF_BROWSERS)):
            return RefusalReason(HTTPStatus.BAD_REQUEST, f"the request contains the header {name} twice")
        headers[name] = value
    return headers


def name_of(host: str) -> str:
    """The name in a Host header, without its port; "" where the port is invalid."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        return host
    return name if port.isascii() and port.isdecimal() and int(port[:6]) <= _LAST_PORT else ""


def foreign_page(method: str, headers: Mapping[str, str], origins: Collection[str]) -> RefusalReason | None:
    """Why a request comes from another site's page. `origins` are our own; `headers` have lower-case names."""
    origin = headers.get("origin")
    if origin is not None and origin not in origins:
        return RefusalReason(HTTPStatus.FORBIDDEN, "requests from pages on other sites are not allowed")
    foreign = headers.get("sec-fetch-site", "none") not in _OUR_OWN
    opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if foreign and not (opened and method in _CHANGES_NOTHING):
        return RefusalReason(HTTPStatus.FORBIDDEN, "pages on other sites can link here, but cannot send requests")
    if origin is None and method not in _CHANGES_NOTHING:
        return RefusalReason(HTTPStatus.FORBIDDEN, "the form has no Origin header")
    return None


@dataclass(frozen=True, slots=True)
class TokenAuthenticator:
    """Knows the token, and the port that browsers use to reach this server."""

    token: str
    port: int

    @property
    def cookie_name(self) -> str:
        """Includes the port: browsers share cookies among the ports of a host, and another server's cookie has another seal."""
        return f"tranche-{self.port}"

    def cookie(self, session: str) -> str:
        """The header that lets a browser in, with its session's name. No script can read it, and other sites cannot have it sent.

        The cookie does not reveal the token.
        """
        return f"{self.cookie_name}={session}.{self._seal(session)}; Path=/; HttpOnly; SameSite=Strict"

    def opens(self, token: str) -> bool:
        """Whether it is the token, compared in constant time."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def strange(self, method: str, headers: Mapping[str, str]) -> RefusalReason | None:
        """Why a request comes from neither our own pages nor the owner; `headers` have lower-case names.

        The port in the name may be that of an ssh tunnel's other end.
        """
        host = headers.get("host", "")
        if name_of(host) not in LOOPBACK_NAMES:
            return RefusalReason(HTTPStatus.MISDIRECTED_REQUEST, "this server does not serve that host name")
        return foreign_page(method, headers, (f"http://{host}",))

    def unknown(self, headers: Mapping[str, str]) -> RefusalReason | None:
        """Why the sender is not let in: the request has neither the cookie nor the token."""
        if self.session_of(headers):
            return None
        return RefusalReason(
            HTTPStatus.UNAUTHORIZED, "open the address that 'tranche dashboard' printed: it contains the token"
        )

    def session_of(self, headers: Mapping[str, str]) -> str:
        """The name of the sender's session, one for all that send the token itself; "" when the sender is not let in."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.opens(token.strip()):
            return WITH_THE_TOKEN
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            cookie = None
        session, _, seal = ("" if cookie is None else cookie.value).rpartition(".")
        return session if hmac.compare_digest(seal.encode(), self._seal(session).encode()) else ""

    def _seal(self, session: str) -> str:
        return hmac.new(self.token.encode(), f"session {self.port} {session}".encode(), hashlib.sha256).hexdigest()
