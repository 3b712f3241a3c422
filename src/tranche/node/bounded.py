"""Reads files that other people name, without trusting what they are: a device that never ends, a pipe that nobody writes to."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

LIMIT = 2**20
"""In bytes: as much as a ConfigMap holds, and far more than any layout, hooks, plan, checkpoint or configuration file has."""
SILENCE_SECONDS = 60.0


class TooLong(ValueError):
    """There is more than LIMIT; nothing of it is given."""


def read_bounded(path: str | Path, *, limit: int = LIMIT) -> bytes:
    """All of the file, the pipe or the device.

    OSError where it cannot be read, and when a named pipe is silent for a minute; TooLong past `limit` bytes.
    """
    # Without O_NONBLOCK the opening of a pipe waits until somebody opens its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        return read_all(descriptor, limit=limit, silence=SILENCE_SECONDS if is_pipe else None)
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


def _await_data(descriptor: int, silence: float | None) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if not waiting.poll(None if silence is None else silence * 1000):
        raise TimeoutError(None, f"nothing was written to it for {silence:g} s")
