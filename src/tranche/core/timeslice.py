"""How long a program has a GPU to itself before the next one that has work takes its turn."""

from __future__ import annotations

from enum import StrEnum

from tranche.core.errors import UsageError


class Timeslice(StrEnum):
    """The driver's lengths. NVIDIA publishes no times for them."""

    DEFAULT = "default"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"

    @property
    def number(self) -> int:
        """The number by which nvidia-smi takes it."""
        return list(Timeslice).index(self)


def parse_timeslice(text: str) -> Timeslice:
    """The length of `timeslice=short`; UsageError for anything else."""
    word = text.removeprefix("timeslice=")
    if word not in list(Timeslice):
        raise UsageError(
            f"'{text}' is no time slice", hint=f"write it as timeslice=LENGTH, with one of {', '.join(Timeslice)}"
        )
    return Timeslice(word)
