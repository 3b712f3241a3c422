"""The newest that a server has seen, for the event loop. Each listener hears what is new since it last heard.

No listener has a queue. A slow one is told later, and then at once of everything that changed meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tranche.documents.describe import timestamp

_SAY_SECONDS = 2.0


class VersionedSnapshot(Protocol):
    """What was seen of a machine or cluster at one moment."""

    @property
    def version(self) -> int:
        """Grows when something that pages show has changed."""

    @property
    def taken(self) -> float:
        """The moment, in seconds since the epoch."""


Seen = TypeVar("Seen", bound=VersionedSnapshot)


@dataclass(frozen=True, slots=True)
class PageUpdate(Generic[Seen]):
    """What a page is told: the newest snapshot, the name of its version, and why none is newer.

    `since` is the version number that the page was told last, None where another server told it.
    """

    version: str
    snapshot: Seen
    trouble: str
    since: int | None = None


class Publisher(Generic[Seen]):
    """Make and use it on the event loop. It leaves `pace` seconds between two updates to one page."""

    def __init__(self, pace: float = 0.0) -> None:
        self._pace = pace
        self._run = secrets.token_hex(4)
        self.newest: Seen | None = None
        """What was seen last."""
        self.trouble = ""
        """Why nothing newer is known; "" where it is."""
        self._reported = asyncio.Event()
        self._ending = False

    def take(self, snapshot: Seen | None, trouble: str = "") -> None:
        """Set the newest snapshot; None where `trouble` prevented a newer one."""
        self.newest = snapshot or self.newest
        self.trouble = trouble
        self._wake()

    def end(self) -> None:
        """End every stream of news."""
        self._ending = True
        self._wake()

    def version(self, snapshot: Seen) -> str:
        """The name of what pages show of a snapshot, unique across restarts of this server."""
        return f"{self._run}.{snapshot.version}"

    async def news(self, known: str = "") -> AsyncGenerator[PageUpdate[Seen], None]:
        """Updates since the `known` version, and one every two seconds without any, until the server ends."""
        told: tuple[str, str] | None = None
        while not self._ending:
            if (snapshot := self.newest) is not None:
                since, known = self._number(known), self.version(snapshot)
                told = (known, self.trouble)
                # A slow listener blocks here; its next update covers everything since.
                yield PageUpdate(known, snapshot, self.trouble, since)
                await asyncio.sleep(self._pace)
            await self._something_new(told)

    def _number(self, version: str) -> int | None:
        run, _, number = version.rpartition(".")
        return int(number) if run == self._run and number.isascii() and number.isdigit() else None

    async def _something_new(self, told: tuple[str, str] | None) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _SAY_SECONDS
        while not self._ending and (left := end - loop.time()) > 0:
            if self.newest is not None and (self.version(self.newest), self.trouble) != told:
                return
            await self._report(left)

    async def _report(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._reported.wait(), seconds)
        except TimeoutError:
            return

    def _wake(self) -> None:
        # Wake those that wait now; later ones wait for the next report.
        reported, self._reported = self._reported, asyncio.Event()
        reported.set()


def seen_message(news: PageUpdate[Seen], now: float, *, anew: bool = True) -> str:
    """Which version is the newest, its time, and whether to fetch the page again; `now` is the server's clock."""
    told = {
        "version": news.version,
        "taken": timestamp(news.snapshot.taken),
        "now": timestamp(now),
        "trouble": news.trouble,
        "anew": anew,
    }
    return message("seen", told, news.version)


def message(kind: str, data: Mapping[str, Any], id: str = "") -> str:
    """A server-sent event."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n"
