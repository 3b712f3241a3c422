"""Watches the machine on its own thread while pages are open, and reports what it saw; it also writes the use of the GPUs.

A driver may hang forever: then nothing waits for it, and pages say since when the picture is not live. The watch sees another
process's writes to the register within a fifth of a second, and other changes every two seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, suppress
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

from tranche.core.errors import TrancheError
from tranche.dashboard.gauges_view import KEPT_DAYS, LINE_SECONDS, LOOK_SECONDS, UseRecord, with_sample
from tranche.dashboard.live import PageUpdate, Publisher
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents.blocks import Document
from tranche.documents.events import event_document
from tranche.documents.gauge_samples import KEPT_GAUGES, GaugeSample, mean_of, sample_of
from tranche.documents.overview import overview_data, plan_document, reading_document
from tranche.hardware.nvml_gauges import NvmlGaugeReader
from tranche.local.wakeup_pipe import silent
from tranche.node.host import Host
from tranche.node.locks.deciding import slow_decision
from tranche.node.store.journal import running_plans
from tranche.node.store.register import process_owners

_KEPT_SECONDS = KEPT_DAYS * 86_400.0
_MOST = round(1.1 * _KEPT_SECONDS / LINE_SECONDS)
"""Lines after which the file is rewritten without the old ones."""
_LARGEST = 16 * 2**20  # bytes; a larger file is not ours
_LOG = logging.getLogger(__name__)

_REGISTER_SECONDS = 0.2
_GPU_SECONDS = 2.0
_PATIENCE_SECONDS = 10.0
_IMPATIENT_SECONDS = 0.5

OpenHost = Callable[[], AbstractContextManager[Host]]


Report = Callable[[int, MachineSnapshot | None, str], None]
"""Called with the number of the newest question before a look, what was seen, and else why nothing was."""


class UseFile:
    """How much the GPUs were used over days: a line per five minutes in a file of the user who runs the server.

    The watch writes it between two looks at the machine, so only the next look waits for it. Two servers of one user write to the
    same file; each knows its own lines and those that were there when it began. One thread writes; any may read `samples`. It
    skips what cannot be read or written, and `trouble` says why.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[GaugeSample] = []
        self.trouble = ""
        self.samples: tuple[GaugeSample, ...] = ()
        """Oldest first; each has the means of the readings since the one before it."""
        try:
            self.samples = tuple(self._read())
        except FileNotFoundError:
            pass
        except OSError as error:
            self.trouble = f"{path} cannot be read: {error.strerror}"
        self._lines = len(self.samples)

    def take(self, taken: float, readings: Iterable[Document]) -> None:
        """Take what was read of the GPUs at that moment, in seconds since the epoch."""
        sample = sample_of(taken, readings)
        if sample.gpus:
            self._pending.append(sample)
        last = self.samples[-1].taken if self.samples else 0.0
        if not self._pending or 0 <= taken - last < LINE_SECONDS:
            return
        line = mean_of(self._pending, taken)
        self._pending = []
        # When the clock was set back, later samples go: the file is in order of time.
        self.samples = (*(each for each in self.samples if taken - _KEPT_SECONDS <= each.taken < taken), line)
        try:
            self._write(line, anew=taken < last or self._lines >= _MOST)
            self.trouble = ""
        except OSError as error:
            self.trouble = f"{self._path} cannot be written: {error.strerror}"

    def _write(self, line: GaugeSample, *, anew: bool) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not anew:
            _append(self._path, os.O_APPEND, [line])
            self._lines += 1
            return
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        _append(unfinished, os.O_TRUNC, self.samples)
        unfinished.replace(self._path)
        self._lines = len(self.samples)

    def _read(self) -> Iterator[GaugeSample]:
        """The samples in the file, in order of time; skips lines that were cut off or are not ours."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, encoding="utf-8", errors="replace") as file:
            written = file.read(_LARGEST)
        last = 0.0
        for text in written.splitlines():
            with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                sample = _sample(json.loads(text))
                if sample.taken > last:
                    last = sample.taken
                    yield sample


def _append(path: Path, how: int, samples: Iterable[GaugeSample]) -> None:
    lines = "".join(f"{json.dumps({'taken': each.taken, 'gpus': each.gpus})}\n" for each in samples)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | how, 0o600)
    with open(descriptor, "wb") as file:
        # Start on a new line, so that one cut off by a full disk ends here.
        file.write(lines.encode() if how == os.O_TRUNC else f"\n{lines}".encode())


def _sample(read: Mapping[str, Any]) -> GaugeSample:
    gpus = {str(uuid): {name: _number(said[name]) for name in KEPT_GAUGES} for uuid, said in read["gpus"].items()}
    taken = _number(read["taken"])
    if taken is None:
        raise ValueError
    return GaugeSample(taken, gpus)


def _number(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise ValueError
    return float(value)


def plans_of(host: Host) -> tuple[Document, ...]:
    """The running plans."""
    with host.ledger.read() as db:
        return tuple(map(plan_document, running_plans(db)))


class Watch:
    """Calls `report` on the watching thread."""

    def __init__(self, open_host: OpenHost, report: Report, use: UseFile) -> None:
        """It also looks now and then while no page is open, to record the use of the GPUs."""
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
                _LOG.exception("the machine could not be read")
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
                left = looked + LOOK_SECONDS - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return not self._ended

    def _look(self, host: Host, gauges: NvmlGaugeReader) -> MachineSnapshot:
        notes: list[str] = []
        view = host.look(
            lambda error: notes.append(f"the page still shows what dead processes left behind: {error.message}")
        )
        if (slow := slow_decision(host.places)) is not None:
            notes.append(str(slow))
        queue = host.waiters()
        now = time.time()
        away = silent(host.places, queue, now)
        newest = host.events(last=1)
        readings = tuple(reading_document(each) for each in gauges.read(view.node))
        last = self._last
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
            UseRecord(self._use.samples, self._use.trouble),
        )
        if last is not None:
            seen = replace(seen, version=last.version + (not seen.shows_the_same(last)))
        self._last = seen
        return seen


class MachinePublisher(Publisher[MachineSnapshot]):
    """Publishes what the watch reports from its thread."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, open_host: OpenHost, use: UseFile) -> None:
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
        return self.newest

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
