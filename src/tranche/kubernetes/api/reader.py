"""Reads lists from an API server in pieces, and records what the caller may not read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeVar
from urllib.parse import urlencode

from tranche.core.errors import KubernetesForbidden, KubernetesNotFound
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json, part

_PIECE = "500"

Found = TypeVar("Found")


async def listed(connection: ApiConnection, what: str, path: str, **query: str) -> AsyncIterator[Json]:
    """Every object of a list, read piece by piece. Errors are those of `KubeClient`."""
    more: Json = {}
    while True:
        asked = {"limit": _PIECE, **query, **more}
        body = (await connection.ask(f"list {what}", "GET", path, query=asked)).accepted()
        for raw in body.get("items") or ():
            yield raw
        following = (body.get("metadata") or {}).get("continue")
        if not following:
            return
        more = {"continue": str(following)}


class ClusterReader:
    """Reads with the caller's rights. Records what is forbidden in `unread`, and reads it as empty."""

    def __init__(self, connection: ApiConnection) -> None:
        self.connection = connection
        self.unread: dict[str, str] = {}

    async def objects(self, what: str, path: str, **query: str) -> tuple[Json, ...] | None:
        """Every object of a list; None where the API server does not know the kind, or the caller may not read it."""
        return await self.decoded(what, path, lambda each: each, **query)

    async def decoded(
        self, what: str, path: str, decode: Callable[[Json], Found], **query: str
    ) -> tuple[Found, ...] | None:
        """The objects of a list, decoded and read piece by piece; None as for `objects`."""
        try:
            return tuple([decode(raw) async for raw in listed(self.connection, what, path, **query)])
        except KubernetesForbidden as error:
            self.unread[what] = error.message
            return None
        except KubernetesNotFound:
            return None

    async def names(self, what: str, path: str) -> frozenset[str] | None:
        """The names of the objects of a list; None as for `objects`."""
        found = await self.decoded(what, path, lambda raw: str(part(raw, "metadata").get("name") or ""))
        return None if found is None else frozenset(found)

    async def object(self, what: str, path: str) -> Json | None:
        """One object; None where there is none, or the caller may not read it."""
        answer = await self.connection.ask(f"read {what}", "GET", path)
        try:
            return answer.unless(404)
        except KubernetesForbidden as error:
            self.unread[what] = error.message
            return None

    async def pods_of(self, what: str, namespace: str, selector: Mapping[str, str]) -> tuple[Json, ...]:
        """The pods with these labels; none where the caller may not read them."""
        labels = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        path = f"/api/v1/namespaces/{namespace}/pods"
        return await self.objects(what, path, labelSelector=labels) or ()

    async def text(self, what: str, path: str, **query: str) -> str | None:
        """A page that is no object, such as a log; None where it is not available."""
        return await self.connection.text(f"read {what}", f"{path}?{urlencode(query)}" if query else path)
