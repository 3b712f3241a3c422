"""A clock that runs faster than time: the demo counts the real machine's seconds in a fraction of them."""

from __future__ import annotations

import time
from collections.abc import Callable


class DemoClock:
    """Counts `speed` seconds for each real one."""

    def __init__(self, speed: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.speed = speed
        self._monotonic = monotonic
        self._start = monotonic()

    def now(self) -> float:
        """Seconds on this clock since it was made."""
        return (self._monotonic() - self._start) * self.speed

    def real(self, seconds: float) -> float:
        """How many real seconds these seconds of this clock take."""
        return seconds / self.speed


def clock_face(seconds: float) -> str:
    """Seconds for people: `1:27`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
