"""Requests to a real API server with nothing but a token."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from http.client import HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from cluster.client import ApiClient


@dataclass(frozen=True)
class Bearer:
    """Whoever has that token, at the server of that client."""

    api: ApiClient
    token: str

    def tries(self, method: str, path: str, body: dict[str, Any] | None = None) -> str:
        """ "done", or the refusal."""
        address = urlsplit(self.api.server)
        assert address.hostname is not None
        context = ssl.create_default_context(cafile=str(self.api.pki.authority))
        connection = HTTPSConnection(address.hostname, address.port, timeout=20, context=context)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            said = None if body is None else json.dumps(body)
            connection.request(method, path, said, {"Authorization": f"Bearer {self.token}", "Content-Type": kind})
            answer = connection.getresponse()
            content = json.loads(answer.read())
            return "done" if answer.status < 300 else f"{answer.status} {content['message']}"
        finally:
            connection.close()
