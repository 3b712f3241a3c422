"""How long somebody waits for what is in use."""

from __future__ import annotations

from dataclasses import dataclass

_OTHERS_SECONDS = 60.0
_LEAST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class WaitLimit:
    """Not at all (`wait` false), without end, or for so many seconds at most."""

    wait: bool = True
    seconds: float | None = None

    def with_others(self, spent: float) -> float | None:
        """For how many seconds others may still decide, `spent` seconds after the beginning; None for ever.

        Decisions are made one at a time and each takes a moment. Somebody without patience gives the others a minute.
        """
        if not self.wait:
            return _OTHERS_SECONDS
        return None if self.seconds is None else max(_LEAST_SECONDS, self.seconds - spent)
