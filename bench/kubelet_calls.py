"""How long claims took to be prepared, as the kubelet says in its log, whichever driver answers: from its call to the answer.

A kubelet tells each call of a driver, and each answer, in microseconds, with a log level of 4 or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

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
