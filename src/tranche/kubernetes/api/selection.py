"""The objects of one kind that a selector picks, as an informer's source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tranche.kubernetes.api.connection import SILENT_SECONDS, ApiConnection
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.informer import Backoff, Informer, ObjectList, WatchEvent, WatchEventType

Item = TypeVar("Item")

_WATCH_SECONDS = 300
_QUIET_SECONDS = int(SILENT_SECONDS * 0.8)


@dataclass(frozen=True, slots=True)
class ObjectSource(Generic[Item]):
    """The objects under `path` that the query `selector` picks, keyed by namespace and name. `label` is for logs.

    The API server sends no bookmarks for kinds that are not `bookmarked`, so a quiet watch looks like a lost one.
    """

    connection: ApiConnection
    label: str
    path: str
    selector: Mapping[str, str]
    decode: Callable[[Json], Item]
    bookmarked: bool = True

    async def snapshots(
        self, random: Callable[[], float], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> AsyncGenerator[tuple[Item, ...], None]:
        """All objects now, then after each change; endless, and recovers by itself. `random` gives numbers from 0 to 1."""
        async with aclosing(Informer(self, Backoff(random), sleep=sleep).snapshots()) as snapshots:
            async for found in snapshots:
                yield tuple(found.values())

    async def versions(
        self, random: Callable[[], float], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> AsyncGenerator[Item | None, None]:
        """As `snapshots`, for a single object; None while there is none."""
        async with aclosing(self.snapshots(random, sleep)) as snapshots:
            async for found in snapshots:
                yield next(iter(found), None)

    async def list(self) -> ObjectList[Item]:
        """All objects now, from the API server's database."""
        answer = await self.connection.ask(f"read {self.label}", "GET", self.path, query=self.selector)
        body = answer.accepted()
        return ObjectList(_version(body), {_key(raw): self.decode(raw) for raw in body.get("items") or ()})

    async def watch(self, resource_version: str) -> AsyncGenerator[WatchEvent[Item], None]:
        """The events after that version, for at most five minutes; two where silence may last that long."""
        query = {
            **self.selector,
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS if self.bookmarked else _QUIET_SECONDS),
        }
        async with aclosing(self.connection.follow(f"watch {self.label}", self.path, query)) as lines:
            async for line in lines:
                yield self._event(line)

    def _event(self, line: Mapping[str, Any]) -> WatchEvent[Item]:
        happening = WatchEventType(line.get("type", WatchEventType.OPENED))
        raw = line.get("object") or {}
        about_object = happening in (WatchEventType.ADDED, WatchEventType.MODIFIED)
        return WatchEvent(happening, _version(raw), _key(raw), self.decode(raw) if about_object else None)


def named(name: str) -> Mapping[str, str]:
    """The selector of the one object with that name."""
    return {"fieldSelector": f"metadata.name={name}"}


def _version(raw: Json) -> str:
    return str((raw.get("metadata") or {}).get("resourceVersion", ""))


def _key(raw: Json) -> str:
    meta = raw.get("metadata") or {}
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}"
