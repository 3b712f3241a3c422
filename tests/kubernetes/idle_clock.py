"""An event loop whose clock stands while anything is to be done: what a test sees does not depend on how fast the machine is.

Its clock goes on by the time until the next timer, once no task can run and no socket has anything to read.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_SETTLING_SECONDS = 0.001
"""How long sockets of this machine are waited for before they count as silent."""


class _IdleSelector(selectors.DefaultSelector):
    """Counts the seconds in which nothing happened, instead of waiting for their end."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(min(timeout, _SETTLING_SECONDS))
        if not ready:
            self.idle += timeout
        return ready


class _IdleClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._idle = _IdleSelector()
        super().__init__(self._idle)

    def time(self) -> float:
        """Seconds in which nothing happened, since the loop was made."""
        return self._idle.idle


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`, by the clock of idle time."""
    with asyncio.Runner(loop_factory=_IdleClockLoop) as runner:
        return runner.run(work)
