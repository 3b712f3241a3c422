"""A page that says what went wrong, and leads on. It loads nothing, for whoever is refused may load nothing."""

from __future__ import annotations

import base64
import hashlib

from tranche.documents.markup import Child, Element, element

_STYLE = (
    "body{margin:0;background:#fff;color:#1f2328;font:16px/1.5 system-ui,sans-serif}"
    "main{max-width:38rem;margin:0 auto;padding:12vh 20px 40px}h1{font-size:24px;margin:0 0 8px}p{overflow-wrap:anywhere}"
    "form{display:flex;flex-wrap:wrap;gap:8px;align-items:end}label{display:grid;gap:2px}"
    "input,button{font:inherit;padding:6px 10px;min-height:36px}a{color:#0550ae}"
    "a:focus-visible{outline:3px solid;outline-offset:2px}"
    "@media (prefers-color-scheme:dark){body{background:#0d1117;color:#f0f6fc}a{color:#79c0ff}}"
)
STYLE_HASH = f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
"""By this a browser knows the style of such a page, and takes no other one in a page."""


def refusal_page(title: str, message: str, way: Element | None = None) -> str:
    """`way` leads on; without one there is the way to the first view."""
    way = element("p", element("a", "Open the dashboard", href="/")) if way is None else way
    return _page(title, element("p", message), way)


def entering_form() -> Element:
    """Takes the token, as the address does that the command prints."""
    token = element("input", type="password", name="token", id="token", required=True, autocomplete="off")
    asked = element("label", "Token", token)
    return element("form", asked, element("button", "Enter"), action="/enter", method="get", aria_label="Enter")


def loopback_way(host: str) -> Element:
    """To this machine by a name that it has, at the port in the Host header of the request."""
    port = host.rpartition(":")[2]
    address = f"http://127.0.0.1{f':{port}' if port.isascii() and port.isdecimal() and len(port) < 6 else ''}/"
    return element("p", "Open ", element("a", address, href=address), ".")


def _page(title: str, *shown: Child) -> str:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} – Tranche"),
        element("style", _STYLE),
    )
    body = element("body", element("main", element("h1", title), *shown))
    return "<!doctype html>\n" + str(element("html", head, body, lang="en"))
