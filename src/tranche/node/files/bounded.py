"""Reads files that other people name, without trusting what they are: a device that never ends, a pipe that nobody writes to."""

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
"""In bytes: as much as a ConfigMap holds, and far more than any layout, hooks, plan, checkpoint or configuration file has."""
SILENCE_SECONDS = 60.0


class TooLong(ValueError):
    """There is more than LIMIT; nothing of it is given."""


def read_bounded(path: str | Path, *, limit: int = LIMIT) -> bytes:
    """All of the file, the pipe or the device.

    OSError where it cannot be read, and when a named pipe is silent for a minute; TooLong past `limit` bytes.
    """
    descriptor = _open(path)
    try:
        return read_all(descriptor, limit=limit, silence=_silence_of(descriptor))
    finally:
        os.close(descriptor)


def read_all(descriptor: int, *, limit: int = LIMIT, silence: float | None = None) -> bytes:
    """The rest of an open file. TimeoutError when nothing comes for `silence` seconds; None waits for ever, as for a person."""
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
    """A file, pipe or device of any length, as it arrives. OSError where it cannot be read, and when a named pipe is silent."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._descriptor = -1  # what could not be opened is closed all the same
        self._descriptor = _open(path)
        self._silence = _silence_of(self._descriptor)

    def readable(self) -> bool:
        """It can be read, and nothing else."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Some of what comes next; 0 at the end."""
        _await_data(self._descriptor, self._silence)
        return os.readv(self._descriptor, [buffer])

    def close(self) -> None:
        """Close the file."""
        if not self.closed and self._descriptor >= 0:
            os.close(self._descriptor)
        super().close()


def _open(path: str | Path) -> int:
    # Without O_NONBLOCK the opening of a pipe waits until somebody opens its other end.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _silence_of(descriptor: int) -> float | None:
    return SILENCE_SECONDS if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None


def _await_data(descriptor: int, silence: float | None) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if not waiting.poll(None if silence is None else silence * 1000):
        raise TimeoutError(None, f"nothing was written to it for {silence:g} s")
