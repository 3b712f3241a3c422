"""The newest that the watch has seen, for the event loop: who comes waits for what is fresh, and hears of what is new."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tranche.dashboard.snapshot import MachineSnapshot
from tranche.dashboard.use_file import UseFile
from tranche.dashboard.watch import OpenHost, Watch
from tranche.documents.describe import timestamp

_PATIENCE_SECONDS = 10.0
_IMPATIENT_SECONDS = 0.5
_SAY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class PageUpdate:
    """What a page is told: which snapshot is the newest, of when, and why there is none that is newer."""

    version: str
    taken: float
    trouble: str

    def to_dict(self, now: float) -> dict[str, Any]:
        """As JSON data; `now` is the server's clock."""
        return {"version": self.version, "taken": timestamp(self.taken), "now": timestamp(now), "trouble": self.trouble}


class MachinePublisher:
    """To be made and used on the event loop; the watch reports from its thread."""

    def __init__(self, open_host: OpenHost, use: UseFile | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(open_host, self._from_thread, use)
        self._run = secrets.token_hex(4)
        self._snapshot: MachineSnapshot | None = None
        self._answered = 0
        self._patience = _PATIENCE_SECONDS
        self._trouble = ""
        self._reported = asyncio.Event()
        self._ending = False
        self._touched = 0

    def start(self) -> None:
        """Begin to look."""
        self._watch.start()

    async def end(self) -> None:
        """Look no more, and end every stream of news."""
        self._ending = True
        self._wake()
        await asyncio.to_thread(self._watch.end)

    async def fresh(self) -> MachineSnapshot | None:
        """The machine as it is now, or where it does not answer in time as it was; None when it was never seen.

        Once it did not answer in time, nobody waits so long for it again until it does.
        """
        question, end = self._watch.ask(), self._loop.time() + self._patience
        while self._answered < question and not self._ending:
            left = end - self._loop.time()
            if left <= 0:
                self._patience = _IMPATIENT_SECONDS
                break
            await self._report(left)
        return self._snapshot

    @property
    def newest(self) -> MachineSnapshot | None:
        """What was seen last."""
        return self._snapshot

    @property
    def trouble(self) -> str:
        """Why nothing was seen at the last look; "" when something was."""
        return self._trouble

    def touch(self) -> None:
        """Say that pages show something else, though the machine may be the same; from any thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take_touch)

    def version(self, snapshot: MachineSnapshot) -> str:
        """The name of what pages show of a snapshot, also after another start of this server."""
        return f"{self._run}.{snapshot.number}.{self._touched}"

    async def news(self) -> AsyncGenerator[PageUpdate, None]:
        """Whatever is new at once, and every two seconds that nothing is, until the server ends."""
        self._watch.watchers(1)
        try:
            told = None
            while not self._ending:
                if self._snapshot is not None:
                    told = PageUpdate(self.version(self._snapshot), self._snapshot.taken, self._trouble)
                    yield told
                await self._something_new(told)
        finally:
            self._watch.watchers(-1)

    async def _something_new(self, told: PageUpdate | None) -> None:
        end = self._loop.time() + _SAY_SECONDS
        while not self._ending and (left := end - self._loop.time()) > 0:
            await self._report(left)
            if self._snapshot is not None and (
                told is None or (self.version(self._snapshot), self._trouble) != (told.version, told.trouble)
            ):
                return

    async def _report(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._reported.wait(), seconds)
        except TimeoutError:
            return

    def _from_thread(self, question: int, seen: MachineSnapshot | None, trouble: str) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody is told
            self._loop.call_soon_threadsafe(self._take, question, seen, trouble)

    def _take(self, question: int, seen: MachineSnapshot | None, trouble: str) -> None:
        self._snapshot = seen or self._snapshot
        self._answered, self._trouble, self._patience = question, trouble, _PATIENCE_SECONDS
        self._wake()

    def _take_touch(self) -> None:
        self._touched += 1
        self._wake()

    def _wake(self) -> None:
        # Whoever waits now is woken, whoever waits from now on waits for the next report.
        reported, self._reported = self._reported, asyncio.Event()
        reported.set()
