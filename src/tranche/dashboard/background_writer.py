"""What a server writes for its owner is written aside: whoever does not read it holds up a thread, and no request."""

from __future__ import annotations

import io
import os
import queue
import threading
from contextlib import suppress

_MOST_WAITING = 1_000
"""Pieces of text that wait for a slow reader. What comes on top of them is lost: the server does not wait for him."""
_LAST_SECONDS = 1.0


class BackgroundWriter(io.TextIOBase):
    """A stream of text to a descriptor that stays open. `write` never waits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: queue.Queue[str] = queue.Queue(_MOST_WAITING)
        self._written = threading.Semaphore(0)
        # The thread holds no lock of Python's while it writes, so that the process can end around it.
        threading.Thread(target=self._write_on, name="written aside", daemon=True).start()

    def writable(self) -> bool:
        """It is made for that."""
        return True

    def write(self, text: str) -> int:
        """Have it written when whoever reads takes it; lost where too much waits already."""
        if text:
            with suppress(queue.Full):
                self._waiting.put_nowait(text)
        return len(text)

    def end(self, seconds: float = _LAST_SECONDS) -> None:
        """Give what waits so long to be written."""
        with suppress(queue.Full):
            self._waiting.put_nowait("")
            self._written.acquire(timeout=seconds)

    def _write_on(self) -> None:
        while True:
            text = self._waiting.get()
            if not text:
                self._written.release()
            left = text.encode(errors="replace")
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                continue  # nobody reads any more, and there is nobody to tell
