"""A small client of the API server, for what is asked often: kubectl costs a tenth of a second of processor each time."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cluster.errors import ClusterError, NotFound
from cluster.pki import Pki

_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class ApiClient:
    """Requests with the rights of one client certificate. If it `keeps`, what writes goes over kept connections, too."""

    server: str
    pki: Pki
    client: str
    keeps: bool = False

    def get(self, path: str) -> dict[str, Any]:
        """The object or list at a path such as `/api/v1/nodes/p4d`.

        Raises:
            ClusterError: the API server refuses, or there is no such object.
            OSError: the API server does not answer.
        """
        return self.request("GET", path)

    def merge(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Merge a patch into the object at a path; null removes. Errors as for `get`."""
        return self.request("PATCH", path, patch, content_type="application/merge-patch+json")

    def apply(self, item: Mapping[str, Any]) -> None:
        """Create or change an object, as `kubectl apply --server-side --force-conflicts` does.

        Errors as for `get`.
        """
        meta = item["metadata"]
        place = f"{self._collection(item['apiVersion'], item['kind'], meta.get('namespace', 'default'))}/{meta['name']}"
        query = "fieldManager=cluster&force=true&fieldValidation=Strict"
        self.request("PATCH", f"{place}?{query}", item, content_type="application/apply-patch+yaml")

    def _collection(self, version: str, kind: str, namespace: str) -> str:
        """The path of the objects of that kind."""
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        key = self, self.pki.authority.stat().st_mtime_ns, group
        if (resources := _resources.get(key)) is None:
            served = self.get(group)["resources"]
            resources = {each["kind"]: each for each in served if "/" not in each["name"]}
            _resources[key] = resources
        if kind not in resources:
            del _resources[key]  # a cluster may come to serve more
            raise NotFound(f"{group} has no {kind}")
        found = resources[kind]
        return f"{group}/namespaces/{namespace}/{found['name']}" if found["namespaced"] else f"{group}/{found['name']}"

    def delete(self, path: str) -> None:
        """Delete the object at a path; nothing happens when there is none. Errors as for `get`."""
        try:
            self.request("DELETE", path)
        except NotFound:
            return

    def delete_all(self, path: str, *, grace_seconds: int | None = None) -> None:
        """Delete every object of the list at a path, without waiting for what ends later. Errors as for `get`.

        `kubectl delete --all` waits for one object after another, half a second each.
        """
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        self.request(
            "DELETE", path, options if grace_seconds is None else {**options, "gracePeriodSeconds": grace_seconds}
        )

    def text(self, path: str) -> str:
        """What is at a path that gives no object, such as a pod's log. Errors as for `get`."""
        return self._content("GET", path).decode()

    def request(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self._content(method, path, body, content_type=content_type))
        return parsed

    def _content(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> bytes:
        """What is answered. What only reads goes over a connection that is kept, and is asked again when that one has broken."""
        encoded = None if body is None else json.dumps(body)
        # A handshake costs both sides milliseconds, and whoever waits for something asks ten times a second. A process that was
        # forked has connections of its own, and a cluster that is made anew under the same name has another authority.
        idle = _idle.setdefault((os.getpid(), self, self.pki.authority.stat().st_mtime_ns), [])
        keeps = self.keeps or method == "GET"
        kept = idle.pop() if keeps and idle else None
        connection = kept or self._connection()
        try:
            connection.request(method, path, body=encoded, headers={"Content-Type": content_type})
            answer = connection.getresponse()
            content = answer.read()
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            if kept is not None and method == "GET" and not isinstance(error, TimeoutError):
                return self._content(method, path, body, content_type=content_type)
            if isinstance(error, OSError):
                raise
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        if keeps and not answer.will_close:
            idle.append(connection)
        else:
            connection.close()
        if answer.status >= 300:
            kind = NotFound if answer.status == 404 else ClusterError
            raise kind(f"{method} {path}: {answer.status} {_message(content)}")
        return content

    def _connection(self) -> http.client.HTTPSConnection:
        address = urlsplit(self.server)
        context = ssl.create_default_context(cafile=str(self.pki.authority))
        context.load_cert_chain(str(self.pki.certificate(self.client)), str(self.pki.key(self.client)))
        assert address.hostname is not None
        return http.client.HTTPSConnection(address.hostname, address.port, timeout=_TIMEOUT_SECONDS, context=context)


_idle: dict[tuple[object, ...], list[http.client.HTTPSConnection]] = {}
_resources: dict[tuple[object, ...], dict[str, dict[str, Any]]] = {}
"""What a cluster serves of a group, by kind: asked once."""


def answers(url: str) -> bool:
    """Whether a component says that it is well. Controller manager and scheduler sign their own certificates."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS, context=context) as answer:
            return bool(answer.status == 200)
    except (http.client.HTTPException, urllib.error.URLError):
        return False


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:500]
