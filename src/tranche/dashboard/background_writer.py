"""Writes the server's output on its own thread: a slow reader blocks that thread, and no request."""

from __future__ import annotations

import io
import os
import queue
import threading
from contextlib import suppress

_MOST_WAITING = 1_000
"""Pieces of text that wait for a slow reader. Further text is lost: the server does not wait."""
_LAST_SECONDS = 1.0


class BackgroundWriter(io.TextIOBase):
    """A text stream to a descriptor that stays open. `write` never waits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: queue.Queue[str] = queue.Queue(_MOST_WAITING)
        self._written = threading.Semaphore(0)
        # The thread holds no Python lock while it writes, so the process can end meanwhile.
        threading.Thread(target=self._write_on, name="written aside", daemon=True).start()

    def writable(self) -> bool:
        """Always true."""
        return True

    def write(self, text: str) -> int:
        """Queue text for the reader; drops it where too much waits already."""
        if text:
            with suppress(queue.Full):
                self._waiting.put_nowait(text)
        return len(text)

    def end(self, seconds: float = _LAST_SECONDS) -> None:
        """Wait at most `seconds` for queued text to be written."""
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
                continue  # the reader is gone, and there is no one to tell
