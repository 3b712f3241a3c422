"""A client that asks a server of pages over HTTP as browsers do, for both dashboards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str

    def json(self) -> dict[str, Any]:
        assert self.status == 200, self.text
        document: dict[str, Any] = json.loads(self.text)
        return document


def ask(port: int, method: str, path: str, token: str, body: str | None, headers: Mapping[str, str]) -> Answered:
    """The answer to one request; "" is no token. A header's `_` is `-`."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    try:
        connection.request(method, path, body, _headers(port, token, headers))
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        errors = "replace" if found.get("content-type", "").startswith("image/") else "strict"
        return Answered(answer.status, found, answer.read().decode(errors=errors))
    finally:
        connection.close()


@contextmanager
def news(port: int, path: str, token: str, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
    """What the server says of changes, for as long as the block lasts; ends when the server ends it."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    connection.request("GET", path, headers=_headers(port, token, headers))
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.getheader("content-type", "").startswith("text/event-stream")

    def lines() -> Iterator[dict[str, Any]]:
        while line := answer.readline().decode():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))

    try:
        yield lines()
    finally:
        connection.close()


def _headers(port: int, token: str, headers: Mapping[str, str]) -> dict[str, str]:
    given = {"Host": f"127.0.0.1:{port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return {**given, "Authorization": f"Bearer {token}"} if token else given
