"""How many requests each placement policy can accept, against packing everything anew at every arrival.

Poisson arrivals, exponential service of mean 1, a request that finds no place is lost; 100 GPUs with seven compute slices. Load
is the offered population over the most of the mix that the GPUs hold when everything may be moved at will. The first fifth of
the arrivals is not counted. All policies see the same arrivals. `repack` accepts whatever is packable with free migration: a
target that no policy without migration reaches, not a strict bound. `product` decides as `tranche run` does, and keeps and reuses
released instances; first-fit and best-fit cut each slice anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from random import Random
from statistics import mean, stdev

from bench.machine import Placer, ProductPath, Spot, board_of
from bench.optimum import fluid_optimum, packable_on_seven_slices
from bench.report import Report
from tranche.planning.decide.tables import PlacementTable, geometry_of

BOARD = "A100-40GB"
GPUS = 100
ARRIVALS = 10_000
LOADS = (85, 95, 100)
POLICY_NAMES = ("first-fit", "best-fit", "product", "repack")
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

    def __init__(self, geometry: PlacementTable, gpus: int, *, tightest: bool) -> None:
        everything = (1 << gpus) - 1
        self._shapes = [shape.masks for shape in geometry.shapes]
        self._masks = [0] * gpus
        self._room = [everything for _ in geometry.shapes]
        self._tightest = tightest
        self._with_taken = [everything, *(0 for _ in range(geometry.units))]

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
        """Give a place back."""
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


class Repack:
    """Accepts whatever would fit if every running slice could be moved for nothing."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._counts = [0] * len(SLICES)

    def place(self, shape: int) -> Spot | None:
        """Count the slice in when the whole would still fit."""
        self._counts[shape] += 1
        if packable_on_seven_slices(tuple(self._counts), self._gpus):
            return Spot(shape, 0)
        self._counts[shape] -= 1
        return None

    def release(self, spot: Spot) -> None:
        """Count the slice out; its shape stands where other placers have the GPU."""
        self._counts[spot.gpu] -= 1


@dataclass(frozen=True, slots=True)
class Arrival:
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


def accepted(placer: Placer, path: Sequence[Arrival]) -> Accepted:
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
    _study(report, "seven mixes", MIXES, range(5000, 5005 if report.long else 5003))
    if report.long:
        _study(report, "twelve random mixes", _random_mixes(12, seed=77), range(6000, 6003))


def _study(report: Report, what: str, mixes: Mapping[str, Sequence[int]], seeds: range) -> None:
    report.section(
        f"Accepted requests by placement policy, {what}",
        f"{GPUS} GPUs of {BOARD}; {ARRIVALS:,} arrivals a run; seeds {seeds[0]} to {seeds[-1]}, the same for every policy.",
        "Cells: percent accepted by count / weighted by compute slices, mean over the seeds.",
    )
    geometry = _geometry()
    rows: list[list[str]] = []
    gaps: dict[str, list[tuple[float, float]]] = {name: [] for name in POLICY_NAMES}
    against_best_fit: list[tuple[str, float, float, float, float]] = []
    cells: list[tuple[str, int, Sequence[int], float]] = []
    cuts: list[float] = []
    for mix_name, weights in mixes.items():
        mix = [Fraction(weight, sum(weights)) for weight in weights]
        most = float(fluid_optimum(geometry, mix).population) * GPUS
        cells += [(mix_name, load, weights, most * load / 100) for load in LOADS]
    with ProcessPoolExecutor() as pool:
        jobs = [pool.submit(_cell, weights, rate, seeds) for _, _, weights, rate in cells]
        for (mix_name, load, _, _), job in zip(cells, jobs, strict=True):
            cell, cell_cuts = job.result()
            cuts.append(cell_cuts)
            means = {name: (mean(a.count for a in runs), mean(a.slices for a in runs)) for name, runs in cell.items()}
            rows.append([mix_name, str(load), *(f"{c:.2f} / {s:.2f}" for c, s in means.values())])
            for name in POLICY_NAMES:
                gaps[name].append((means["repack"][0] - means[name][0], means["repack"][1] - means[name][1]))
            pairs = list(zip(cell["product"], cell["best-fit"], strict=True))
            by_count, by_slices = [a.count - b.count for a, b in pairs], [a.slices - b.slices for a, b in pairs]
            label = f"{mix_name} {load}"
            against_best_fit.append((label, mean(by_count), _error(by_count), mean(by_slices), _error(by_slices)))
    report.table(["mix", "load", *POLICY_NAMES], rows)
    report.table(
        ["gap to repack, percentage points", "count: mean", "worst", "slices: mean", "worst"],
        [[name, *_mean_and_worst(gaps[name])] for name in POLICY_NAMES if name != "repack"],
    )
    report.table(["instances the product creates and destroys for each that it accepts"], [[f"{mean(cuts):.2f}"]])
    _judge(report, gaps, against_best_fit)


def _geometry() -> PlacementTable:
    board = board_of(BOARD)
    assert board.memory_slices is not None
    return geometry_of(board.memory_slices, board.profiles)


def _cell(weights: Sequence[int], rate: float, seeds: range) -> tuple[dict[str, list[Accepted]], float]:
    """What each policy accepts of the arrivals of each seed, and how often the product cuts for each that it accepts."""
    paths = [arrivals(weights, rate, ARRIVALS, seed) for seed in seeds]
    placers = {name: [_placer(name) for _ in paths] for name in POLICY_NAMES}
    found = {name: list(map(accepted, placers[name], paths)) for name in POLICY_NAMES}
    return found, mean(each.cuts for each in placers["product"] if isinstance(each, ProductPath))


def _placer(name: str) -> Placer:
    match name:
        case "first-fit" | "best-fit":
            return ByIndex(_geometry(), GPUS, tightest=name == "best-fit")
        case "repack":
            return Repack(GPUS)
        case _:
            return ProductPath(board_of(BOARD), GPUS)


def _random_mixes(number: int, seed: int) -> dict[str, tuple[int, ...]]:
    """Mixes that nothing was tuned on: Dirichlet with concentration 0.8, in per mille."""
    random = Random(seed)
    mixes = {}
    for index in range(number):
        parts = [random.gammavariate(0.8, 1.0) for _ in SLICES]
        mixes[f"random {index + 1}"] = tuple(round(1000 * part / sum(parts)) for part in parts)
    return mixes


def _judge(
    report: Report,
    gaps: dict[str, list[tuple[float, float]]],
    against_best_fit: list[tuple[str, float, float, float, float]],
) -> None:
    least = min(against_best_fit, key=lambda cell: cell[1])
    least_slices = min(against_best_fit, key=lambda cell: cell[3])
    report.table(
        ["product less best-fit, paired, smallest cell", "cell", "points", "standard error"],
        [
            ["by count", least[0], f"{least[1]:+.2f}", f"{least[2]:.2f}"],
            ["by slices", least_slices[0], f"{least_slices[3]:+.2f}", f"{least_slices[4]:.2f}"],
        ],
    )
    near = all(count >= -0.2 for _, count, _, _, _ in against_best_fit)
    report.verdict("the product is in no cell more than 0.2 points by count behind best-fit", near)
    better = mean(g[0] for g in gaps["product"]) < mean(g[0] for g in gaps["best-fit"])
    report.verdict("the product is better than best-fit overall", better)


def _mean_and_worst(gaps: Sequence[tuple[float, float]]) -> list[str]:
    counts, slices = [c for c, _ in gaps], [s for _, s in gaps]
    return [f"{mean(counts):.2f}", f"{max(counts):.2f}", f"{mean(slices):.2f}", f"{max(slices):.2f}"]


def _error(differences: Sequence[float]) -> float:
    return float(stdev(differences) / len(differences) ** 0.5)


def _weighed(counts: Sequence[int]) -> int:
    return sum(count * slices for count, slices in zip(counts, SLICES, strict=True))
