"""The acceptance study in small: its baselines are what they say, and the default policy earns its place."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from bench.acceptance import GPUS, MIXES, ByIndex, Repack, accepted, arrivals
from bench.machine import ProductPath, Spot, board_of, plain_shapes
from bench.optimum import fluid_optimum
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.request import MigSlice, Request
from tranche.planning.decide.allocate import Granted, decide
from tranche.planning.decide.tables import PlacementTable, geometry_of


def a100() -> PlacementTable:
    return geometry_of(8, board_of("A100-40GB").profiles)


@given(st.integers(0, 10_000), st.booleans())
def test_the_indexed_baselines_choose_what_a_scan_chooses(seed: int, tightest: bool) -> None:
    random, geometry, gpus = Random(seed), a100(), 4
    placer = ByIndex(geometry, gpus, tightest=tightest)
    masks = [0] * gpus
    live: list[Spot] = []
    for _ in range(40):
        if live and random.random() < 0.4:
            spot = live.pop(random.randrange(len(live)))
            placer.release(spot)
            masks[spot.gpu] ^= spot.slices
            continue
        places = geometry.shapes[random.randrange(6)].masks
        free = [(gpu, mask) for gpu, taken in enumerate(masks) for mask in places if not mask & taken]
        if tightest:
            free.sort(key=lambda place: -masks[place[0]].bit_count())
        shape = next(index for index, each in enumerate(geometry.shapes) if each.masks == places)
        assert placer.place(shape) == (Spot(*free[0]) if free else None)
        if free:
            masks[free[0][0]] |= free[0][1]
            live.append(Spot(*free[0]))


@given(st.integers(0, 10_000))
def test_the_product_chooses_what_a_decision_on_the_whole_machine_chooses(seed: int) -> None:
    random, board = Random(seed), board_of("A100-40GB")
    product, profiles = ProductPath(board, 4), plain_shapes(board)
    live: list[Spot] = []
    for _ in range(25):
        if live and random.random() < 0.4:
            product.release(live.pop(random.randrange(len(live))))
            continue
        shape = random.randrange(6)
        decided = decide(product.view, Request(MigSlice(profiles[shape].name)))
        spot = product.place(shape)
        assert (spot is not None) == isinstance(decided, Granted)
        if spot is not None and isinstance(decided, Granted):
            slot = decided.grants[0].slot
            assert slot is not None
            assert spot == Spot(int(slot.gpu_uuid.removeprefix("GPU-")), slot.placement.mask)
            live.append(spot)


@pytest.mark.parametrize(
    "mix", ["uniform6", *(pytest.param(mix, marks=pytest.mark.long) for mix in ("skew-small", "skew-big", "openb-map"))]
)
def test_the_default_accepts_more_than_first_fit_and_best_fit(mix: str) -> None:
    """The same arrivals for all, at 95 % load: a fixed sample path, so the result is the same on every machine."""
    geometry, weights = a100(), MIXES[mix]
    most = fluid_optimum(geometry, [Fraction(weight, sum(weights)) for weight in weights]).population
    path = arrivals(weights, float(most) * GPUS * 0.95, 6000, seed=1)
    default = accepted(ProductPath(board_of("A100-40GB"), GPUS), path)
    first = accepted(ByIndex(geometry, GPUS, tightest=False), path)
    best = accepted(ByIndex(geometry, GPUS, tightest=True), path)
    assert default.count > best.count
    assert default.count > first.count
    assert default.slices > best.slices
    assert default.slices > first.slices
    assert accepted(Repack(GPUS), path).slices > default.slices
