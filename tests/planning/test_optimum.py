"""What the acceptance study measures policies against, each against a slower way to the same answer."""

from __future__ import annotations

from itertools import product

import pytest
from bench.acceptance import fullest, packable
from bench.machine import GEOMETRY
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.packings import maximal_packings

PACKINGS = maximal_packings(GEOMETRY)


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
        assert packable(counts, 1) == fits, counts


@given(
    st.tuples(*(st.integers(0, top) for top in (14, 6, 6, 4, 2, 2))),
)
def test_two_gpus_agree_with_a_search(counts: tuple[int, ...]) -> None:
    assert packable(counts, 2) == packable_by_search(counts, 2)


@given(st.lists(st.integers(0, 9), min_size=6, max_size=6).filter(any))
def test_a_large_fleet_holds_the_fullest_mix_and_no_more(weights: list[int]) -> None:
    gpus = 10**9

    def counts(population: float) -> list[int]:
        return [int(population * gpus * weight / sum(weights)) for weight in weights]

    assert packable(counts(fullest(weights) - 1e-6), gpus)
    assert not packable(counts(fullest(weights) + 1e-6), gpus)


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
    assert fullest(mix) == pytest.approx(population)
