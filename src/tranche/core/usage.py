"""What users have used of a machine's GPUs, by day. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tranche.core.allocation import WHOLE, Allocation
from tranche.core.keeper import ProcessKeeper

DAY_SECONDS = 86_400
HALF_LIFE_DAYS = 7
WINDOW_DAYS = 7
"""The days that a limit of GPU-hours covers, today included."""
COUNTED_DAYS = 20 * HALF_LIFE_DAYS
"""Older use has lost its value."""
_LONGEST_DAYS = 366
"""The most that one share counts, in case the clock was wrong when it began."""


class DayUsage(NamedTuple):
    """What one user used on one day, which is counted since the epoch, in UTC.

    A share of half a GPU for two hours is 3,600 `gpu_seconds` and 7,200 `share_seconds`. `shares` counts what ended, or runs.
    `preemptible_seconds` are those of the `gpu_seconds` that count neither for the user's place in the queue nor for quotas.
    """

    day: int
    uid: int
    gpu_seconds: float
    share_seconds: float
    shares: int
    preemptible_seconds: float = 0.0


def usage_of(allocation: Allocation, until: float) -> Iterator[DayUsage]:
    """The use of an allocation up to a time in seconds since the epoch, one for each day; none if no user is known."""
    keeper = allocation.keeper
    if not isinstance(keeper, ProcessKeeper) or keeper.uid < 0:
        return
    begun, part = allocation.created, allocation.gpu_millionths / WHOLE
    until = max(begun, until)
    first = int(begun // DAY_SECONDS)
    for day in range(max(first, int(until // DAY_SECONDS) - _LONGEST_DAYS), int(until // DAY_SECONDS) + 1):
        seconds = min(until, (day + 1) * DAY_SECONDS) - max(begun, day * DAY_SECONDS)
        used, preemptible = part * seconds, allocation.request.preemptible
        last = int(day == int(until // DAY_SECONDS))
        yield DayUsage(day, keeper.uid, used, seconds, last, used if preemptible else 0.0)


def with_running(ended: Iterable[DayUsage], allocations: Iterable[Allocation], now: float) -> tuple[DayUsage, ...]:
    """The recorded use of ended shares, and that of the present ones until now."""
    return (*ended, *(each for allocation in allocations for each in usage_of(allocation, now)))


def recent_use(usage: Iterable[DayUsage], now: float) -> dict[int, float]:
    """GPU-seconds of each user today and on the six days before."""
    return _summed(usage, now, lambda age: float(age < WINDOW_DAYS))


def weighed_use(usage: Iterable[DayUsage], now: float) -> dict[int, float]:
    """GPU-seconds of each user, each day's with the value it still has."""
    return _summed(usage, now, lambda age: 2.0 ** (-age / HALF_LIFE_DAYS))


def _summed(usage: Iterable[DayUsage], now: float, value: Callable[[int], float]) -> dict[int, float]:
    today, found = int(now // DAY_SECONDS), dict[int, float]()
    for each in usage:
        counted = (each.gpu_seconds - each.preemptible_seconds) * value(max(today - each.day, 0))
        found[each.uid] = found.get(each.uid, 0.0) + counted
    return found
