"""What every page has: its head, links to the other views, and whether it is live; and the plain page that loads nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tranche.dashboard.parts import moment
from tranche.documents import describe
from tranche.documents.markup import Child, Element, element
from tranche.documents.picture import PATTERNS

VIEWS = (
    ("/", "Fleet"),
    ("/queue", "Queue"),
    ("/ask", "Ask"),
    ("/events", "Events"),
    ("/waste", "Waste"),
    ("/layouts", "Layouts"),
)
"""The views that every page links to."""
_STYLE = (
    "body{margin:0;background:#fff;color:#1f2328;font:16px/1.5 system-ui,sans-serif}"
    "main{max-width:38rem;margin:0 auto;padding:12vh 20px 40px}h1{font-size:24px;margin:0 0 8px}p{overflow-wrap:anywhere}"
    "form{display:flex;flex-wrap:wrap;gap:8px;align-items:end}label{display:grid;gap:2px}"
    "input,button{font:inherit;padding:6px 10px;min-height:36px}a{color:#0550ae}"
    "a:focus-visible{outline:3px solid;outline-offset:2px}"
    "@media (prefers-color-scheme:dark){body{background:#0d1117;color:#f0f6fc}a{color:#79c0ff}}"
)
STYLE_HASH = f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
"""Identifies this page's style to browsers, which take no other style inside a page."""


@dataclass(frozen=True, slots=True)
class DashboardPage:
    """A page. `live` is replaced on changes; `above` and `below` stay, since a person may be typing there.

    With a `feed`, single rows are replaced: that address tells of them. With `every`, the script asks again after so many seconds
    even if it was told of no change.
    """

    title: str
    live: Element
    above: Element | None = None
    below: Element | None = None
    feed: str = ""
    every: int = 0


def whole_page(
    page: DashboardPage,
    *,
    path: str,
    machine: str,
    version: str,
    taken: float,
    views: Sequence[tuple[str, str]] = VIEWS,
    trouble: str = "",
    unseen: str = "the driver does not answer",
) -> str:
    """The page as HTML. `version` names the snapshot that it shows, of the moment `taken`.

    `trouble` says why nothing newer is known, "" where it is current. `unseen` is what it means when the server speaks without
    trouble but sees nothing newer.
    """
    scripts = ("rows.js", "page.js") if page.feed else ("page.js",)
    return "<!doctype html>\n" + str(
        element(
            "html",
            _head(
                f"{page.title} – {machine}",
                _icon(),
                *(element("link", rel="stylesheet", href=f"/static/{each}.css") for each in ("picture", "page")),
                *(element("script", src=f"/static/{each}", defer=True) for each in scripts),
            ),
            element(
                "body",
                element("a", "Skip to the content", href="#main", class_="skip"),
                element("header", _names(machine), _ways(path, views), _liveness(taken, trouble, unseen)),
                element(
                    "main",
                    element("h1", page.title),
                    page.above,
                    live_part(page),
                    page.below,
                    id="main",
                    tabindex=-1,
                ),
                element("svg", PATTERNS, class_="patterns", aria_hidden="true", width=0, height=0),
                data_version=version,
                data_feed=page.feed or None,
                data_every=page.every or None,
            ),
            lang="en",
        )
    )


def live_part(page: DashboardPage) -> Element:
    """The part that the page's script asks for alone, to replace the old one."""
    return element("div", page.live, id="view")


def entered_page() -> str:
    """Leads from the address with the token to the first view.

    A redirect would count as a navigation by the linking site, and browsers would send it without the cookie.
    """
    again = element("meta", http_equiv="refresh", content="0;url=/")
    # Where a page names no icon, browsers ask for one at an address of their own.
    head = element("head", again, element("title", "Tranche"), _icon())
    body = element("body", element("p", element("a", "Open the dashboard", href="/")))
    return "<!doctype html>\n" + str(element("html", head, body, lang="en"))


def _head(title: str, *more: Child) -> Element:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        more,
    )


def _icon() -> Element:
    return element("link", rel="icon", href="/static/icon.svg", type="image/svg+xml")


def _names(machine: str) -> Element:
    return element("p", element("strong", "Tranche"), " ", element("span", machine), class_="names")


def _ways(path: str, views: Sequence[tuple[str, str]]) -> Element:
    ways = [
        element("li", element("a", word, href=address, aria_current="page" if address == path else None))
        for address, word in views
    ]
    return element("nav", element("ul", ways), aria_label="Views")


def _liveness(taken: float, trouble: str, unseen: str) -> Element:
    """Says when the picture was taken; without the script, that is all."""
    at, why = describe.timestamp(taken), f": {trouble}" if trouble else ""
    said = element("span", "as of ", moment(at), f"{why}; reload to update", id="live-said")
    return element("p", said, id="live", role="status", class_="still", data_taken=at, data_unseen=unseen)


def refusal_page(title: str, message: str, way: Element | None = None) -> str:
    """`way` links onward; without it the page links to the first view."""
    way = element("p", element("a", "Open the dashboard", href="/")) if way is None else way
    return plain_page(title, element("p", message), way)


def token_form(address: str, method: str) -> Element:
    """A form for the viewer's token."""
    token = element("input", type="password", name="token", id="token", required=True, autocomplete="off")
    asked = element("label", "Token", token)
    return element("form", asked, element("button", "Enter"), action=address, method=method, aria_label="Enter")


def loopback_way(host: str) -> Element:
    """A link to this machine by a name of its own, with the port in the request's Host header."""
    port = host.rpartition(":")[2]
    address = f"http://127.0.0.1{f':{port}' if port.isascii() and port.isdecimal() and len(port) < 6 else ''}/"
    return element("p", "Open ", element("a", address, href=address), ".")


def plain_page(title: str, *shown: Child | None) -> str:
    """A page that loads nothing."""
    head = _head(f"{title} – Tranche", element("style", _STYLE))
    body = element("body", element("main", element("h1", title), *shown))
    return "<!doctype html>\n" + str(element("html", head, body, lang="en"))
