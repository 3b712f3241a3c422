"""Follows a collection of API objects: lists once, then watches, and recovers from any failure.

The core is pure: `ObjectList` and `after` say how an event changes what is known. An `ObjectSource`, the objects of one kind that
a selector picks, adds the network and the waiting. It lists everything again whenever a watch ends, because versions mean nothing
after the API server's database was restored to an earlier one: the server then accepts a watch from a version that it has not
reached yet, and stays silent.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.connection import SILENT_SECONDS, ApiConnection
from tranche.kubernetes.api.decoding import Json

_log = logging.getLogger(__name__)

Item = TypeVar("Item")


class WatchEventType(StrEnum):
    """The types of a watch event.

    OPENED is ours: the API server has accepted the watch. EXPIRED is its error event: the version that the watch began from is
    gone.
    """

    OPENED = "OPENED"
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    EXPIRED = "ERROR"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[Item]):
    """One line of a watch: what happened to the object `key`; `item` is None when the line concerns no object."""

    happening: WatchEventType
    resource_version: str = ""
    key: str = ""
    item: Item | None = None


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[Item]):
    """The known objects of a collection, as of a version."""

    resource_version: str
    items: Mapping[str, Item] = field(default_factory=dict)


def after(known: ObjectList[Item], event: WatchEvent[Item]) -> ObjectList[Item] | None:
    """What is known after the event; None when everything must be listed again. `items` is the same object if nothing changed."""
    if event.happening is WatchEventType.EXPIRED:
        return None
    if event.happening is WatchEventType.OPENED:
        return known
    if event.happening is WatchEventType.DELETED:
        left = {key: item for key, item in known.items.items() if key != event.key}
        return ObjectList(event.resource_version, left)
    if event.item is None:
        return ObjectList(event.resource_version, known.items)
    if known.items.get(event.key) == event.item:
        return ObjectList(event.resource_version, known.items)
    return ObjectList(event.resource_version, {**known.items, event.key: event.item})


_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
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

    async def snapshots(self, note: Callable[[str], None] = lambda why: None) -> AsyncGenerator[tuple[Item, ...], None]:
        """All objects as soon as they are known, then after each change; endless, and recovers by itself.

        Calls `note` after each listing with the reason why it failed, "" if it succeeded.
        """
        pause, failing = _FIRST_PAUSE_SECONDS, ""
        shown: Mapping[str, Item] | None = None
        while True:
            try:
                known = await self._listed(note)
                if known.items != shown:
                    shown = known.items
                    yield tuple(shown.values())
                async with aclosing(self.watch(known.resource_version)) as events:
                    async for event in events:
                        if failing:
                            _log.info("watching again", extra={"object": self.label})
                        pause, failing = _FIRST_PAUSE_SECONDS, ""
                        news = after(known, event)
                        if news is None:
                            break
                        known = news
                        if known.items is not shown and known.items != shown:
                            shown = known.items
                            yield tuple(shown.values())
            except TrancheError as error:
                if str(error) != failing:
                    said = {"object": self.label, "reason": error.reason, "error": str(error)}
                    _log.warning("cannot watch", extra=said)
                failing = str(error)
            # Also after a watch that ended normally: an API server may end each watch at once. Not all nodes ask at one time.
            await self.connection.sleep(pause * (1 - self.connection.random() / 2))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _listed(self, note: Callable[[str], None]) -> ObjectList[Item]:
        try:
            found = await self.list()
        except TrancheError as error:
            note(error.message)
            raise
        note("")
        return found

    async def tell(self, hear: Callable[[tuple[Item, ...]], None]) -> None:
        """Call with each of `snapshots`, until cancelled."""
        async with aclosing(self.snapshots()) as snapshots:
            async for found in snapshots:
                hear(found)

    async def versions(self) -> AsyncGenerator[Item | None, None]:
        """As `snapshots`, for a single object; None while there is none."""
        async with aclosing(self.snapshots()) as snapshots:
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
