"""The exact bounds, each against a slower way to the same number."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from bench.optimum import fluid_optimum, maximal_packings, packable_on_seven_slices
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.board import board_by_key
from tranche.planning.decide.tables import PlacementTable, geometry_of


def a100() -> PlacementTable:
    board = board_by_key("A100-40GB")
    assert board is not None
    return geometry_of(8, board.profiles)


PACKINGS = maximal_packings(a100())


def packable_by_search(counts: tuple[int, ...], gpus: int) -> bool:
    """Cover the counts with one maximal packing for each GPU, trying them all."""
    if not any(counts):
        return True
    if gpus == 0:
        return False
    rests = {tuple(max(0, have - take) for have, take in zip(counts, packing, strict=True)) for packing in PACKINGS}
    return any(packable_by_search(rest, gpus - 1) for rest in rests)


def test_one_gpu_agrees_with_the_packings_everywhere() -> None:
    for counts in product(range(9), range(6), range(5), range(4), range(3), range(3)):
        fits = any(all(c <= p for c, p in zip(counts, packing, strict=True)) for packing in PACKINGS)
        assert packable_on_seven_slices(counts, 1) == fits, counts


@given(
    st.tuples(*(st.integers(0, top) for top in (14, 6, 6, 4, 2, 2))),
)
def test_two_gpus_agree_with_a_search(counts: tuple[int, ...]) -> None:
    assert packable_on_seven_slices(counts, 2) == packable_by_search(counts, 2)


@given(st.lists(st.integers(0, 9), min_size=6, max_size=6).filter(any))
def test_the_fluid_optimum_has_matching_primal_and_dual(weights: list[int]) -> None:
    """No packing is worth more than one GPU, and the mix at the claimed population is worth exactly one: so it is optimal."""
    mix = [Fraction(weight, sum(weights)) for weight in weights]
    found = fluid_optimum(a100(), mix)
    assert all(price >= 0 for price in found.prices)
    assert all(sum(n * price for n, price in zip(p, found.prices, strict=True)) <= 1 for p in PACKINGS)
    assert sum(q * price for q, price in zip(mix, found.prices, strict=True)) * found.population == 1


@pytest.mark.parametrize(
    ("mix", "population"),
    [
        ((1, 0, 0, 0, 0, 0), 7),
        ((0, 1, 0, 0, 0, 0), 4),
        ((0, 0, 1, 0, 0, 0), 3),
        ((0, 0, 0, 1, 1, 0), 2),
        ((0, 0, 0, 0, 0, 1), 1),
    ],
)
def test_populations_that_are_obvious(mix: tuple[int, ...], population: int) -> None:
    assert fluid_optimum(a100(), [Fraction(weight, sum(mix)) for weight in mix]).population == population
