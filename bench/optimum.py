"""The exact best, to measure policies against: what fits one GPU, what fits a fleet, and how much of a mix a fleet can hold.

Counts are tuples in the order of `PlacementTable.shapes`. The linear program is solved exactly, in fractions, by the simplex
method
with Bland's rule, which cannot cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from tranche.planning.decide.tables import PlacementTable

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FluidOptimum:
    """How many instances of a mix one GPU holds on average when everything may be moved at will.

    `population` is that number; `prices` says what one instance of each shape is worth, in GPUs: no packing of one GPU is
    worth more than 1, and the mix is worth exactly 1 / population an instance.
    """

    population: Fraction
    prices: tuple[Fraction, ...]


@cache
def maximal_packings(geometry: PlacementTable) -> tuple[Counts, ...]:
    """The counts of instances that one GPU can hold at once and that are not part of a larger such count, in order."""
    found: set[Counts] = set()
    slots = [(index, mask) for index, shape in enumerate(geometry.shapes) for mask in shape.masks]

    def extend(first: int, taken: int, counts: Counts) -> None:
        found.add(counts)
        for number in range(first, len(slots)):
            index, mask = slots[number]
            if not mask & taken:
                more = (*counts[:index], counts[index] + 1, *counts[index + 1 :])
                extend(number + 1, taken | mask, more)

    extend(0, 0, (0,) * len(geometry.shapes))
    return tuple(sorted(c for c in found if not any(c != d and _covers(d, c) for d in found)))


def fluid_optimum(geometry: PlacementTable, mix: Sequence[Fraction]) -> FluidOptimum:
    """The most of a mix (weights by shape, summing to 1) that one GPU holds on average, with the shapes' worth."""
    packings = maximal_packings(geometry)
    # Maximise N subject to N * mix <= sum of packing * share for each shape, and the shares sum to at most 1.
    rows = [[weight, *(Fraction(-p[shape]) for p in packings)] for shape, weight in enumerate(mix)]
    rows.append([Fraction(0), *(Fraction(1) for _ in packings)])
    limits = [Fraction(0)] * len(mix) + [Fraction(1)]
    gain = [Fraction(1)] + [Fraction(0)] * len(packings)
    population, worth = _simplex(rows, limits, gain)
    return FluidOptimum(population, tuple(each / population for each in worth[:-1]))


def packable_on_seven_slices(counts: Counts, gpus: int) -> bool:
    """Whether that many GPUs with seven compute slices can hold the counts at once (1g, 1g double memory, 2g, 3g, 4g, 7g).

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


def _covers(larger: Counts, smaller: Counts) -> bool:
    return all(a >= b for a, b in zip(larger, smaller, strict=True))


def _simplex(
    rows: list[list[Fraction]], limits: list[Fraction], gain: list[Fraction]
) -> tuple[Fraction, list[Fraction]]:
    """Maximise gain.x over rows.x <= limits, x >= 0, with limits >= 0: the value and the worth of each row's limit."""
    count, width = len(rows), len(gain)
    slack = [[Fraction(int(i == j)) for j in range(count)] for i in range(count)]
    table = [[*row, *slack[i], limits[i]] for i, row in enumerate(rows)]
    reduced = [-value for value in gain] + [Fraction(0)] * (count + 1)
    basis = list(range(width, width + count))
    while (enter := next((j for j, value in enumerate(reduced[:-1]) if value < 0), None)) is not None:
        ratios = [(row[-1] / row[enter], basis[i], i) for i, row in enumerate(table) if row[enter] > 0]
        leave = min(ratios)[2]
        pivot = table[leave]
        scale = pivot[enter]
        table[leave] = pivot = [value / scale for value in pivot]
        for row in [*(r for i, r in enumerate(table) if i != leave), reduced]:
            if factor := row[enter]:
                for j, value in enumerate(pivot):
                    if value:
                        row[j] -= factor * value
        basis[leave] = enter
    return reduced[-1], reduced[width : width + count]
