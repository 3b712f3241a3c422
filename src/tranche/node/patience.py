"""How long somebody waits for what is in use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Not at all (`wait` false), without end, or for so many seconds at most."""

    wait: bool = True
    seconds: float | None = None
