"""The acceptance study in small: its baselines are what they say, and the default policy earns its place."""

from __future__ import annotations

from random import Random

import pytest
from bench.acceptance import GPUS, MIXES, ByIndex, Repack, accepted, arrivals, fullest
from bench.machine import GEOMETRY, SHAPES, ProductPath, Spot
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import LONG
from tranche.core.request import MigSlice, Request
from tranche.planning.decide.allocate import Granted, decide


@given(st.integers(0, 10_000), st.booleans())
def test_the_indexed_baselines_choose_what_a_scan_chooses(seed: int, tightest: bool) -> None:
    random, gpus = Random(seed), 4
    placer = ByIndex(gpus, tightest=tightest)
    masks = [0] * gpus
    live: list[Spot] = []
    for _ in range(40):
        if live and random.random() < 0.4:
            spot = live.pop(random.randrange(len(live)))
            placer.release(spot)
            masks[spot.gpu] ^= spot.slices
            continue
        places = GEOMETRY.shapes[random.randrange(6)].masks
        free = [(gpu, mask) for gpu, taken in enumerate(masks) for mask in places if not mask & taken]
        if tightest:
            free.sort(key=lambda place: -masks[place[0]].bit_count())
        shape = next(index for index, each in enumerate(GEOMETRY.shapes) if each.masks == places)
        assert placer.place(shape) == (Spot(*free[0]) if free else None)
        if free:
            masks[free[0][0]] |= free[0][1]
            live.append(Spot(*free[0]))


@given(st.integers(0, 10_000))
def test_the_product_chooses_what_a_decision_on_the_whole_machine_chooses(seed: int) -> None:
    random, product = Random(seed), ProductPath(4)
    live: list[Spot] = []
    for _ in range(25):
        if live and random.random() < 0.4:
            product.release(live.pop(random.randrange(len(live))))
            continue
        shape = random.randrange(6)
        decided = decide(product.view, Request(MigSlice(SHAPES[shape].name)))
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
    path = arrivals(MIXES[mix], fullest(MIXES[mix]) * GPUS * 0.95, 6000 if LONG else 2000, seed=1)
    default = accepted(ProductPath(GPUS), path)
    first = accepted(ByIndex(GPUS, tightest=False), path)
    best = accepted(ByIndex(GPUS, tightest=True), path)
    assert default.count > best.count
    assert default.count > first.count
    assert default.slices > best.slices
    assert default.slices > first.slices
    assert accepted(Repack(GPUS), path).slices > default.slices
