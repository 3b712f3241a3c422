"""What the gauges said of late: kept in memory while pages are open, for charts. Pure; `watch` says when and what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tranche.documents.blocks import Document
from tranche.documents.gauge_samples import GaugeSample, sample_of

EVERY_SECONDS = 5.0
"""At least so long apart are two samples."""
KEPT_SECONDS = 3600.0
LOOK_SECONDS = 60.0
"""So often the machine is looked at while nobody watches, where its use is written down."""
LINE_SECONDS = 300.0
"""So long is the time of which a line is written."""
KEPT_DAYS = 7


@dataclass(frozen=True, slots=True)
class UseRecord:
    """What was written down of earlier days, oldest first; `trouble` says why nothing is now."""

    samples: tuple[GaugeSample, ...]
    trouble: str = ""


def with_sample(kept: tuple[GaugeSample, ...], taken: float, readings: Iterable[Document]) -> tuple[GaugeSample, ...]:
    """The samples with one more, without those that are too old; a clock that was set back begins anew."""
    if kept and 0 <= taken - kept[-1].taken < EVERY_SECONDS:
        return kept
    sample = sample_of(taken, readings)
    young = [each for each in kept if taken - KEPT_SECONDS <= each.taken < taken]
    return (*young, sample) if sample.gpus else tuple(young)
