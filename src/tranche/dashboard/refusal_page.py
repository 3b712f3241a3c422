"""A page that says what went wrong and links onward. It loads nothing, since a refused client may load nothing."""

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
"""Identifies this page's style to browsers, which take no other style inside a page."""


def refusal_page(title: str, message: str, way: Element | None = None) -> str:
    """`way` links onward; without it the page links to the first view."""
    way = element("p", element("a", "Open the dashboard", href="/")) if way is None else way
    return plain_page(title, element("p", message), way)


def entering_form() -> Element:
    """A form for the token, which is also in the address that the command prints."""
    token = element("input", type="password", name="token", id="token", required=True, autocomplete="off")
    asked = element("label", "Token", token)
    return element("form", asked, element("button", "Enter"), action="/enter", method="get", aria_label="Enter")


def loopback_way(host: str) -> Element:
    """A link to this machine by a name of its own, with the port in the request's Host header."""
    port = host.rpartition(":")[2]
    address = f"http://127.0.0.1{f':{port}' if port.isascii() and port.isdecimal() and len(port) < 6 else ''}/"
    return element("p", "Open ", element("a", address, href=address), ".")


def plain_page(title: str, *shown: Child | None) -> str:
    """A page that loads nothing."""
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
