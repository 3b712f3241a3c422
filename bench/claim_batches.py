"""Claims that came at once, as one driver prepared them, and how drivers compare by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.kubelet_calls import Preparation, percentile
from bench.report import Report


@dataclass(frozen=True, slots=True)
class ClaimBatch:
    """How long each claim took in milliseconds; until all were prepared, and until all pods ran, in seconds.

    `repeated` counts the calls of the kubelet beyond one for each claim: those that were refused or not answered.
    """

    claims: tuple[float, ...]
    prepared: float
    running: float
    repeated: int

    @classmethod
    def of(cls, done: Sequence[Preparation], running: float) -> ClaimBatch:
        """The batch of these claims; all are prepared so long after the kubelet's first call."""
        return cls(
            tuple(1000 * each.seconds for each in done),
            max(each.ended for each in done) - min(each.began for each in done),
            running,
            sum(each.calls - 1 for each in done),
        )

    @property
    def p50(self) -> float:
        """Milliseconds that half of the claims took at most."""
        return percentile(self.claims, 0.5)

    @property
    def p99(self) -> float:
        """Milliseconds that 99 of 100 claims took at most."""
        return percentile(self.claims, 0.99)


def compare(report: Report, what: str, batches: Mapping[str, Sequence[ClaimBatch]]) -> None:
    """Print each driver's medians, then how many times those of the first each other one has."""
    medians = {name: _medians(each) for name, each in batches.items()}
    rows = [[name, *(f"{value:.1f}" for value in row[:-1]), f"{row[-1]:g}"] for name, row in medians.items()]
    (name, first), *others = medians.items()
    for other, row in others:
        ratios = (f"{theirs / ours:.1f}" for ours, theirs in zip(first[:-1], row[:-1], strict=True))
        rows.append([f"{other} : {name}", *ratios, ""])
    report.table((what, "p50, ms", "p99, ms", "all prepared, s", "all run, s", "calls repeated"), rows)


def _medians(batches: Sequence[ClaimBatch]) -> tuple[float, ...]:
    rows = [(each.p50, each.p99, each.prepared, each.running, each.repeated) for each in batches]
    return tuple(map(median, zip(*rows, strict=True)))
