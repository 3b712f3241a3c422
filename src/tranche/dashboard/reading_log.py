"""Recent gauge readings, kept in memory while pages are open, for charts. Pure; `watch` says when and what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tranche.documents.blocks import Document
from tranche.documents.gauge_samples import GaugeSample, sample_of

EVERY_SECONDS = 5.0
"""The least time between two samples."""
KEPT_SECONDS = 3600.0
LOOK_SECONDS = 60.0
"""The time between looks at the machine while no page is open, where its use is recorded."""
LINE_SECONDS = 300.0
"""The time that one line covers."""
KEPT_DAYS = 7


@dataclass(frozen=True, slots=True)
class UseRecord:
    """What was recorded on earlier days, oldest first; `trouble` says why nothing is recorded now."""

    samples: tuple[GaugeSample, ...]
    trouble: str = ""


def with_sample(kept: tuple[GaugeSample, ...], taken: float, readings: Iterable[Document]) -> tuple[GaugeSample, ...]:
    """The samples plus one, without those that are too old; starts over after a clock was set back."""
    if kept and 0 <= taken - kept[-1].taken < EVERY_SECONDS:
        return kept
    sample = sample_of(taken, readings)
    young = [each for each in kept if taken - KEPT_SECONDS <= each.taken < taken]
    return (*young, sample) if sample.gpus else tuple(young)
