"""How long claims took to be prepared, as the kubelet says in its log, whichever driver answers: from its call to the answer.

A kubelet tells each call of a driver, and each answer, in microseconds, with a log level of 4 or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from bench.report import Report

LOG_LEVEL = 4
_LINE = re.compile(
    r'^I(\d{4} \d\d:\d\d:\d\d\.\d{6}) .*?"(Calling|Done calling) NodePrepareResources rpc" .*?driverName="([^"]+)"(.*)$',
    re.MULTILINE,
)
_ASKED = re.compile(r'\buid:\\?"([^"\\]+)')
_ANSWERED = re.compile(r'\bkey:\\?"([^"\\]+)\\?" +value:\{(devices|error)')


@dataclass(frozen=True, slots=True)
class Preparation:
    """One claim from the first call for it until it was prepared. `began` and `ended` in seconds of the kubelet's wall clock."""

    uid: str
    began: float
    ended: float
    calls: int

    @property
    def seconds(self) -> float:
        """How long it took, the kubelet's pauses between calls included."""
        return self.ended - self.began


def preparations(log: str, driver: str) -> tuple[Preparation, ...]:
    """The claims that a driver of that name has prepared, in the order in which they were; an open call counts as none."""
    return tuple(_preparations(log, driver))


def _preparations(log: str, driver: str) -> Iterator[Preparation]:
    asked: dict[str, list[float]] = {}
    for moment, word, name, rest in _LINE.findall(log):
        if name != driver:
            continue
        seconds = _seconds(moment)
        if word == "Calling":
            for uid in _ASKED.findall(rest):
                asked.setdefault(uid, []).append(seconds)
            continue
        for uid, outcome in _ANSWERED.findall(rest):
            if outcome == "devices" and (calls := asked.pop(uid, None)):
                yield Preparation(uid, calls[0], seconds, len(calls))


def percentile(values: Sequence[float], share: float) -> float:
    """The value that such a share of all lies at or below, to the nearest of them."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def _seconds(moment: str) -> float:
    # The log names no year; any leap year will do.
    return datetime.strptime(f"2000{moment} +0000", "%Y%m%d %H:%M:%S.%f %z").timestamp()


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
