"""Moments that a restarted manager can still reckon with: seconds of the machine's monotonic clock, and which start of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """`seconds` are of a clock that only goes forward, but begins anew with each start of the machine; `boot` names the start."""

    boot: str
    seconds: float

    def until(self, now: Moment) -> float | None:
        """How many seconds ago it was; None when that cannot be told: the machine was restarted since."""
        passed = now.seconds - self.seconds
        return passed if self.boot == now.boot and passed >= 0 else None

    def __str__(self) -> str:
        return f"{self.seconds:.3f}@{self.boot}"


def parse_moment(text: str) -> Moment:
    """The moment that `str` wrote; for any other text one of which nothing can be told."""
    seconds, _, boot = text.partition("@")
    try:
        return Moment(boot, float(seconds))
    except ValueError:
        return Moment(boot, float("inf"))
