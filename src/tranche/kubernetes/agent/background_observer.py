"""Runs a read that may block forever on its own thread: one at a time, keeping the last result."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from tranche.core.errors import TrancheError

Seen = TypeVar("Seen")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TimedObservation(Generic[Seen]):
    """What was read, and when the read began, in seconds of a monotonic clock."""

    what: Seen
    at: float


class BackgroundReader(Generic[Seen]):
    """For use from one event loop. Its daemon thread does not keep the process from exiting."""

    def __init__(self, name: str, *, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._last: TimedObservation[Seen] | None = None
        self._looking: asyncio.Event | None = None
        self._failure = ""
        self._thread: threading.Thread | None = None

    async def latest(self, look: Callable[[], Seen], patience: float) -> TimedObservation[Seen] | None:
        """Read, and return the newest result; waits at most `patience` seconds. None when no read ever succeeded.

        While a read hangs, no other begins, and callers get the last result with its age.
        """
        if self._looking is None:
            self._looking = asyncio.Event()
            self._thread = threading.Thread(
                target=self._look, args=(look, asyncio.get_running_loop()), name=self._name, daemon=True
            )
            self._thread.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._looking.wait()
        return self._last

    def join(self) -> None:
        """Wait for a running read to end, if any. Callable from any thread; may block forever."""
        if self._thread is not None:
            self._thread.join()

    def _look(self, look: Callable[[], Seen], loop: asyncio.AbstractEventLoop) -> None:
        begun = self._clock()
        seen: TimedObservation[Seen] | None = None
        failure = ""
        try:
            seen = TimedObservation(look(), begun)
        except TrancheError as error:
            failure = str(error)
        except Exception as defect:
            failure = f"{type(defect).__name__}: {defect}"
            _log.exception("%s failed", self._name)
        with suppress(RuntimeError):  # the loop has ended in the meantime
            loop.call_soon_threadsafe(self._done, seen, failure)

    def _done(self, seen: TimedObservation[Seen] | None, failure: str) -> None:
        if seen is not None:
            self._last = seen
        if failure != self._failure:
            self._failure = failure
            if failure:
                _log.warning("%s failed", self._name, extra={"error": failure})
        if self._looking is not None:
            self._looking.set()
            self._looking = None
