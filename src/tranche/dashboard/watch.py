"""Watches the machine on its own thread while pages are open, and reports what it saw.

A driver may hang forever: then nothing waits for it, and pages say since when the picture is not live. The watch sees another
process's writes to the register within a fifth of a second, and other changes every two seconds.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing, suppress
from contextvars import copy_context
from dataclasses import replace

from tranche.core.errors import TrancheError
from tranche.dashboard.gauges_view import LOOK_SECONDS, UseRecord, with_sample
from tranche.dashboard.live import PageUpdate, Publisher
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.dashboard.use_file import UseFile
from tranche.documents.blocks import Document
from tranche.documents.events import event_document
from tranche.documents.overview import overview_data, plan_document, reading_document
from tranche.hardware.nvml_gauges import NvmlGaugeReader
from tranche.local.wakeup_pipe import silent
from tranche.node.host import Host
from tranche.node.locks.deciding import slow_decision
from tranche.node.store.journal import running_plans
from tranche.node.store.register import process_owners

_LOG = logging.getLogger(__name__)

_REGISTER_SECONDS = 0.2
_GPU_SECONDS = 2.0
_PATIENCE_SECONDS = 10.0
_IMPATIENT_SECONDS = 0.5

OpenHost = Callable[[], AbstractContextManager[Host]]


Report = Callable[[int, MachineSnapshot | None, str], None]
"""Called with the number of the newest question before a look, what was seen, and else why nothing was."""


def plans_of(host: Host) -> tuple[Document, ...]:
    """The running plans."""
    with host.ledger.read() as db:
        return tuple(map(plan_document, running_plans(db)))


class Watch:
    """Calls `report` on the watching thread."""

    def __init__(self, open_host: OpenHost, report: Report, use: UseFile | None = None) -> None:
        """With a file for the use of the GPUs, it also looks now and then while no page is open."""
        self._open_host = open_host
        self._use = use
        self._report = report
        self._last: MachineSnapshot | None = None
        self._watchers = 0
        self._asked = 0
        self._answered = 0
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=copy_context().run, args=(self._watch,), daemon=True, name="watch")

    def start(self) -> None:
        """Start, with one look."""
        self._asked += 1
        self._thread.start()

    def end(self) -> None:
        """Stop looking. A look under way may go on; this waits only briefly for it."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(2.0)

    def ask(self) -> int:
        """Ask for a look as soon as possible; returns the number of this question."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
            return self._asked

    def watchers(self, more: int) -> None:
        """So many more, or fewer, listeners want to know of every change."""
        with self._changed:
            self._watchers += more
            self._changed.notify_all()

    def _watch(self) -> None:
        while not self._ended:
            try:
                with self._open_host() as host:
                    self._look_again_and_again(host)
            except TrancheError as error:
                self._say_why_not(error.message)
            except Exception as error:
                # Catch everything: a page must not look live after its thread has died.
                _LOG.exception("the machine could not be looked at")
                self._say_why_not(f"{type(error).__name__}: {error}")

    def _say_why_not(self, why: str) -> None:
        self._answered = self._asked
        self._report(self._answered, None, why)
        with self._changed:
            self._changed.wait(_GPU_SECONDS)

    def _look_again_and_again(self, host: Host) -> None:
        version, looked, gauges = -1, 0.0, NvmlGaugeReader(time.monotonic)
        while self._wait_for_a_reason(looked):
            question, version_now = self._asked, host.ledger.version()
            due = time.monotonic() - looked >= _GPU_SECONDS
            if question != self._answered or version_now != version or due:
                # A write during the look may be missing from it, so the next look takes it in.
                version, seen = version_now, self._look(host, gauges)
                self._answered, looked = question, time.monotonic()
                self._report(question, seen, "")
            with self._changed:
                if self._asked == self._answered and not self._ended:
                    self._changed.wait(_REGISTER_SECONDS)

    def _wait_for_a_reason(self, looked: float) -> bool:
        """Return when someone wants to know something, or the use of the GPUs is due to be written; False at the end."""
        with self._changed:
            while not (self._ended or self._watchers or self._asked != self._answered):
                left = None if self._use is None else looked + LOOK_SECONDS - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            return not self._ended

    def _look(self, host: Host, gauges: NvmlGaugeReader) -> MachineSnapshot:
        notes: list[str] = []
        view = host.look(lambda error: notes.append(f"what dead processes left is shown as it is: {error.message}"))
        if (slow := slow_decision(host.places)) is not None:
            notes.append(str(slow))
        queue = host.waiters()
        now = time.time()
        away = silent(host.places, queue, now)
        newest = host.events(last=1)
        readings = tuple(reading_document(each) for each in gauges.read(view.node))
        last = self._last
        if self._use is not None:
            self._use.take(now, readings)
        seen = MachineSnapshot(
            1,
            now,
            view,
            queue,
            away,
            overview_data(view, queue, away, process_owners(view.allocations, queue)),
            event_document(newest[-1]) if newest else None,
            readings,
            tuple(notes),
            plans_of(host),
            with_sample(() if last is None else last.samples, now, readings),
            None if self._use is None else UseRecord(self._use.samples, self._use.trouble),
        )
        if last is not None:
            seen = replace(seen, version=last.version + (not seen.shows_the_same(last)))
        self._last = seen
        return seen


class MachinePublisher(Publisher[MachineSnapshot]):
    """Publishes what the watch reports from its thread."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, open_host: OpenHost, use: UseFile | None = None) -> None:
        super().__init__()
        self._watch = Watch(open_host, self._from_thread, use)
        self._answered = 0
        self._patience = _PATIENCE_SECONDS
        self._touched = 0

    def start(self) -> None:
        """Start looking."""
        self._loop = asyncio.get_running_loop()
        self._watch.start()

    async def stop(self) -> None:
        """Stop looking, and end every stream of news."""
        self.end()
        await asyncio.to_thread(self._watch.end)

    async def fresh(self) -> MachineSnapshot | None:
        """The machine as it is now, or as last seen if it does not answer in time; None if it was never seen.

        After a timeout, later calls wait less until it answers again.
        """
        question, end = self._watch.ask(), self._loop.time() + self._patience
        while self._answered < question and not self._ending:
            left = end - self._loop.time()
            if left <= 0:
                self._patience = _IMPATIENT_SECONDS
                break
            await self._report(left)
        return self._snapshot

    def touch(self) -> None:
        """Say that pages show something else, though the machine may be unchanged; from any thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take_touch)

    def version(self, snapshot: MachineSnapshot) -> str:
        """The name of what pages show of a snapshot, unique across restarts of this server."""
        return f"{super().version(snapshot)}.{self._touched}"

    async def news(self, known: str = "") -> AsyncGenerator[PageUpdate[MachineSnapshot], None]:
        """The same; watches the machine meanwhile."""
        self._watch.watchers(1)
        try:
            async with aclosing(super().news(known)) as every:
                async for each in every:
                    yield each
        finally:
            self._watch.watchers(-1)

    def _from_thread(self, question: int, seen: MachineSnapshot | None, trouble: str) -> None:
        with suppress(RuntimeError):  # the loop has ended, so there is no one to tell
            self._loop.call_soon_threadsafe(self._take_answer, question, seen, trouble)

    def _take_answer(self, question: int, seen: MachineSnapshot | None, trouble: str) -> None:
        self._answered, self._patience = question, _PATIENCE_SECONDS
        self.take(seen, trouble)

    def _take_touch(self) -> None:
        self._touched += 1
        self._wake()
