"""Reads untrusted files that users name, which may be endless devices or silent pipes."""

from __future__ import annotations

import io
import os
import select
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LIMIT = 2**20
"""In bytes: the size limit of a ConfigMap, far above any layout, hooks, plan, checkpoint or configuration file."""
SILENCE_SECONDS = 60.0


class TooLong(ValueError):
    """The content exceeds the limit; none of it is returned."""


def read_bounded(path: str | Path, *, limit: int = LIMIT) -> bytes:
    """The whole content of a file, pipe or device.

    Raises OSError when it cannot be read or a named pipe is silent for a minute, and TooLong past `limit` bytes.
    """
    descriptor = _open(path)
    try:
        return read_all(descriptor, limit=limit, silence=_silence_of(descriptor))
    finally:
        os.close(descriptor)


def read_all(descriptor: int, *, limit: int = LIMIT, silence: float | None = None) -> bytes:
    """The rest of an open file. Raises TimeoutError after `silence` seconds without data; None waits forever, as for a person."""
    chunks: list[bytes] = []
    room = limit + 1
    while room > 0:
        _await_data(descriptor, silence)
        chunk = os.read(descriptor, min(room, 2**16))
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        room -= len(chunk)
    raise TooLong(f"it is longer than {limit} bytes")


class BoundedStream(io.RawIOBase):
    """A file, pipe or device of any length, as it arrives. Raises OSError when it is unreadable or a named pipe is silent."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._descriptor = -1  # close() runs even if opening fails
        self._descriptor = _open(path)
        self._silence = _silence_of(self._descriptor)

    def readable(self) -> bool:
        """Always true; the stream is read-only."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read some of the next bytes; returns their number, 0 at the end."""
        _await_data(self._descriptor, self._silence)
        return os.readv(self._descriptor, [buffer])

    def close(self) -> None:
        """Close the file."""
        if not self.closed and self._descriptor >= 0:
            os.close(self._descriptor)
        super().close()


def _open(path: str | Path) -> int:
    # Without O_NONBLOCK, opening a pipe waits until a writer opens the other end.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _silence_of(descriptor: int) -> float | None:
    return SILENCE_SECONDS if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None


def _await_data(descriptor: int, silence: float | None) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if not waiting.poll(None if silence is None else silence * 1000):
        raise TimeoutError(None, f"nothing was written to it for {silence:g} s")
