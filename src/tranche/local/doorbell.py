"""How a waiter is told that its turn may have come: a named pipe that it sleeps on and that anybody may ring.

A pipe, not a socket, because a state folder may be deeper than the 107 bytes that a socket's path allows.
"""

from __future__ import annotations

import os
import select
from pathlib import Path


class Doorbell:
    """The waiter's end; the pipe exists from creation until close()."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
        # Open for writing too: a pipe without writers reports end of file for ever.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wait(self, seconds: float) -> bool:
        """Sleep until the bell rings or the time is over; whether it rang. Rings that pile up count as one."""
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, seconds))
        if not ready:
            return False
        os.read(self._descriptor, 4096)
        return True

    def close(self) -> None:
        """Remove the pipe."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def ring(path: Path) -> bool:
    """Ring a waiter's bell; whether somebody sleeps there."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, b"!")
    except BlockingIOError:
        pass
    except BrokenPipeError:
        return False  # the waiter left between the two calls
    finally:
        os.close(descriptor)
    return True
