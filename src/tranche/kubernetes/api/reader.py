"""Reads lists from an API server in pieces, and remembers what the caller may not read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import urlencode

from tranche.core.errors import KubernetesForbidden, KubernetesNotFound
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json

_PIECE = 500

Found = TypeVar("Found")


class ClusterReader:
    """Asks with the caller's rights. What is forbidden is remembered in `unread`, and reads as nothing."""

    def __init__(self, connection: ApiConnection) -> None:
        self.connection = connection
        self.unread: dict[str, str] = {}

    async def objects(self, what: str, path: str, **query: str) -> tuple[Json, ...] | None:
        """Every object of a list; None where the API server knows no such kind, or the caller may not read it."""
        return await self.decoded(what, path, lambda each: each, **query)

    async def decoded(
        self, what: str, path: str, decode: Callable[[Json], Found], **query: str
    ) -> tuple[Found, ...] | None:
        """What `decode` makes of each object of a list, a piece of which is there at a time; None as for `objects`."""
        found: list[Found] = []
        more = ""
        while True:
            asked = {"limit": str(_PIECE), **query, **({"continue": more} if more else {})}
            try:
                body = (await self.connection.ask(f"list {what}", "GET", path, query=asked)).accepted()
            except KubernetesForbidden as error:
                self.unread[what] = error.message
                return None
            except KubernetesNotFound:
                return None
            found += map(decode, body.get("items") or ())
            more = str((body.get("metadata") or {}).get("continue") or "")
            if not more:
                return tuple(found)

    async def object(self, what: str, path: str) -> Json | None:
        """One object; None where there is none, or the caller may not read it."""
        try:
            return (await self.connection.ask(f"read {what}", "GET", path)).accepted()
        except KubernetesForbidden as error:
            self.unread[what] = error.message
            return None
        except KubernetesNotFound:
            return None

    async def pods_of(self, what: str, namespace: str, selector: Mapping[str, str]) -> tuple[Json, ...]:
        """The pods with these labels; none where the caller may not read them."""
        labels = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        path = f"/api/v1/namespaces/{namespace}/pods"
        return await self.objects(what, path, labelSelector=labels) or ()

    async def text(self, what: str, path: str, **query: str) -> str | None:
        """A page that is no object, such as a log; None where it cannot be had."""
        return await self.connection.text(f"read {what}", f"{path}?{urlencode(query)}" if query else path)
