"""How many requests each placement policy can accept, against packing everything anew at every arrival.

Poisson arrivals, exponential service of mean 1, a request that finds no place is lost; 100 GPUs with seven compute slices. Load
is the offered population over the most of the mix that the GPUs hold when everything may be moved at will. The first fifth of
the arrivals is not counted. All policies see the same arrivals. `repack` accepts whatever is packable with free migration: a
target that no policy without migration reaches, not a strict bound. Tranche decides as `tranche run` does, and keeps and reuses
released instances; first-fit and best-fit cut each slice anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random
from statistics import mean
from typing import NamedTuple

from bench.machine import BOARD, GEOMETRY, ProductPath, Spot
from bench.report import Report, on_all_cores

GPUS = 100
ARRIVALS = 10_000
LOADS = (85, 95, 100)
SEEDS = range(5000, 5003)
OURS = "Tranche"
POLICY_NAMES = (OURS, "best-fit", "first-fit", "repack")
SLICES = (1, 1, 2, 3, 4, 7)
# Weights of 1g, 1g with double memory, 2g, 3g, 4g, 7g.
MIXES = {
    "uniform6": (1, 1, 1, 1, 1, 1),
    "uniform5": (1, 0, 1, 1, 1, 1),
    "skew-small": (400, 150, 200, 150, 70, 30),
    "skew-big": (50, 50, 100, 250, 250, 300),
    "bimodal": (400, 50, 50, 50, 50, 400),
    "inference": (450, 100, 300, 150, 0, 0),
    "openb-map": (4, 0, 38, 52, 131, 775),
}


class ByIndex:
    """First-fit, or best-fit when `tightest`; ties go to the lowest GPU and the lowest start, as is usual for both.

    Best-fit takes the GPU with the fewest free memory slices among those with room. Bit sets of GPUs make both fast.
    """

    def __init__(self, gpus: int, *, tightest: bool) -> None:
        everything = (1 << gpus) - 1
        self._shapes = [shape.masks for shape in GEOMETRY.shapes]
        self._masks = [0] * gpus
        self._room = [everything for _ in GEOMETRY.shapes]
        self._tightest = tightest
        self._with_taken = [everything, *(0 for _ in range(GEOMETRY.units))]

    def place(self, shape: int) -> Spot | None:
        """Take a place for a slice of that shape; None when there is none."""
        room = self._room[shape]
        if not room:
            return None
        if self._tightest:
            room = next(tight for gpus in reversed(self._with_taken) if (tight := room & gpus))
        gpu = (room & -room).bit_length() - 1
        taken = self._masks[gpu]
        spot = Spot(gpu, next(mask for mask in self._shapes[shape] if not mask & taken))
        self._set(gpu, taken | spot.slices)
        return spot

    def release(self, spot: Spot) -> None:
        self._set(spot.gpu, self._masks[spot.gpu] ^ spot.slices)

    def _set(self, gpu: int, taken: int) -> None:
        bit = 1 << gpu
        self._with_taken[self._masks[gpu].bit_count()] ^= bit
        self._with_taken[taken.bit_count()] ^= bit
        self._masks[gpu] = taken
        for shape, masks in enumerate(self._shapes):
            if any(not mask & taken for mask in masks):
                self._room[shape] |= bit
            else:
                self._room[shape] &= ~bit


def packable(counts: Sequence[float], gpus: int) -> bool:
    """Whether so many GPUs can hold the counts of slices at once (1g, 1g with double memory, 2g, 3g, 4g, 7g).

    Only 7g crosses the middle of such a GPU. Its left half is two pairs of memory slices, or one 3g or 4g; its right half is
    a pair and a tail of two slices that holds a single 1g of either kind, or one 3g. A 3g on the right costs a pair and a tail,
    on the left two pairs, and a pair holds whatever a tail does: so as many 3g as possible go to the right.
    """
    one, one_double, two, three, four, seven = counts
    cut = gpus - seven
    right = min(three, cut)
    left_halves = cut - four - (three - right)
    if cut < 0 or left_halves < 0:
        return False
    tails = cut - right
    pairs = 2 * left_halves + cut - right - two
    tails_used = min(one_double, tails)
    pairs -= one_double - tails_used
    return pairs >= 0 and one <= 2 * pairs + tails - tails_used


def fullest(mix: Sequence[int]) -> float:
    """How many slices of a mix (weights of shapes) one GPU of many holds on average when everything may be moved at will."""
    least, most = 0.0, 7.0
    for _ in range(60):
        tried = (least + most) / 2
        least, most = (tried, most) if packable([tried * weight / sum(mix) for weight in mix], 1) else (least, tried)
    return least


class Repack:
    """Accepts whatever would fit if every running slice could be moved for nothing."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._counts = [0] * len(SLICES)

    def place(self, shape: int) -> Spot | None:
        """Count the slice in when the whole would still fit."""
        self._counts[shape] += 1
        if packable(self._counts, self._gpus):
            return Spot(shape, 0)
        self._counts[shape] -= 1
        return None

    def release(self, spot: Spot) -> None:
        """Count the slice out; its shape stands where other placers have the GPU."""
        self._counts[spot.gpu] -= 1


class Arrival(NamedTuple):
    """A request: when it comes, for how long it would run, and its shape."""

    time: float
    service: float
    shape: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """Accepted requests in percent, by count and weighted by compute slices."""

    count: float
    slices: float


def arrivals(mix: Sequence[int], rate: float, number: int, seed: int) -> list[Arrival]:
    random = Random(seed)
    shapes = random.choices(range(len(mix)), mix, k=number)
    found, now = [], 0.0
    for shape in shapes:
        now += random.expovariate(rate)
        found.append(Arrival(now, random.expovariate(1.0), shape))
    return found


def accepted(placer: ByIndex | Repack | ProductPath, path: Sequence[Arrival]) -> Accepted:
    running: list[tuple[float, int, Spot]] = []
    offered, taken = [0] * len(SLICES), [0] * len(SLICES)
    first_counted = len(path) // 5
    for number, arrival in enumerate(path):
        while running and running[0][0] <= arrival.time:
            placer.release(heappop(running)[2])
        spot = placer.place(arrival.shape)
        if spot is not None:
            heappush(running, (arrival.time + arrival.service, number, spot))
        if number >= first_counted:
            offered[arrival.shape] += 1
            taken[arrival.shape] += spot is not None
    return Accepted(100 * sum(taken) / sum(offered), 100 * _weighed(taken) / _weighed(offered))


def run(report: Report) -> None:
    loads = f"{', '.join(f'{load}%' for load in LOADS[:-1])} or {LOADS[-1]}%"
    report.section(
        "Accepted requests",
        f"The benchmark requests and releases slices of {GPUS} {BOARD} GPUs. Requests that do not fit are rejected.",
        f"The load is {loads} of what would fit if slices could move freely, in {len(MIXES)} mixes of profiles.",
        f"Each run has {ARRIVALS:,} requests. Each cell shows, in percentage points, how many more"
        " are rejected than with free moves.",
        "The last two columns weight each request by its compute slices.",
    )
    found = on_all_cores({(mix, load): (_cell, MIXES[mix], load) for mix in MIXES for load in LOADS})
    gaps = {
        name: [
            (cell["repack"].count - cell[name].count, cell["repack"].slices - cell[name].slices)
            for cell in found.values()
        ]
        for name in POLICY_NAMES[:-1]
    }
    report.table(
        ["", "mean", "worst", "weighted: mean", "worst"],
        [
            [name, *(f"{f(part):.2f}" for part in zip(*gap, strict=True) for f in (mean, max))]
            for name, gap in gaps.items()
        ],
    )
    least = min(cell[OURS].count - cell["best-fit"].count for cell in found.values())
    report.verdict("For every mix and load, Tranche is at most 0.2 points behind best-fit.", least >= -0.2)


def _cell(weights: Sequence[int], load: int) -> dict[str, Accepted]:
    """What each policy accepts of the arrivals, as the mean of the seeds."""
    rate = fullest(weights) * GPUS * load / 100
    paths = [arrivals(weights, rate, ARRIVALS, seed) for seed in SEEDS]
    placers: dict[str, Callable[[], ByIndex | Repack | ProductPath]] = {
        "first-fit": partial(ByIndex, GPUS, tightest=False),
        "best-fit": partial(ByIndex, GPUS, tightest=True),
        OURS: partial(ProductPath, GPUS),
        "repack": partial(Repack, GPUS),
    }
    return {name: _mean([accepted(placers[name](), path) for path in paths]) for name in POLICY_NAMES}


def _mean(several: Sequence[Accepted]) -> Accepted:
    return Accepted(mean(each.count for each in several), mean(each.slices for each in several))


def _weighed(counts: Sequence[int]) -> int:
    return sum(count * slices for count, slices in zip(counts, SLICES, strict=True))
