"""Counters and grid say the same of every set of instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import PLACEABLE_BOARDS, boards, gpu_on, placed, uncuttable_gpu
from tranche.core.board import Board, GpuInstanceProfile
from tranche.core.grid import PlacedInstance, Placement, fits, placements
from tranche.core.state import GpuState
from tranche.kubernetes.devices.devices import consumed_by, counters_of

Spot = tuple[GpuInstanceProfile, Placement]


def slots(board: Board) -> list[Spot]:
    return [(profile, spot) for profile in placed(board) for spot in placements(profile)]


def fit_the_grid(chosen: Sequence[Spot]) -> bool:
    taken: list[PlacedInstance] = []
    for profile, spot in chosen:
        if not fits(profile, spot, taken):
            return False
        taken.append(PlacedInstance(profile.name, spot))
    return True


def fit_the_counters(chosen: Sequence[Spot], gpu: GpuState) -> bool:
    used: Counter[str] = Counter()
    for profile, spot in chosen:
        used.update(consumed_by(profile.name, spot, gpu))
    have = counters_of(gpu)
    return all(used[name] <= have[name] for name in used)


@pytest.mark.parametrize("board", PLACEABLE_BOARDS, ids=lambda board: board.key)
def test_two_instances_fit_the_counters_exactly_when_they_fit_the_grid(board: Board) -> None:
    gpu = gpu_on(board)
    for one, other in combinations(slots(board), 2):
        assert fit_the_counters((one, other), gpu) == fit_the_grid((one, other)), (one[0].name, other[0].name)


@given(st.data())
def test_any_set_of_instances_fits_the_counters_exactly_when_it_fits_the_grid(data: st.DataObject) -> None:
    board = data.draw(boards())
    gpu = gpu_on(board)
    chosen: list[Spot] = []
    for each in data.draw(st.permutations(slots(board))):
        fitting = fit_the_grid([*chosen, each])
        assert fit_the_counters([*chosen, each], gpu) == fitting
        if fitting:
            chosen.append(each)


@pytest.mark.parametrize("board", PLACEABLE_BOARDS, ids=lambda board: board.key)
def test_an_instance_takes_no_counter_that_the_gpu_has_not(board: Board) -> None:
    gpu = gpu_on(board)
    for profile, spot in slots(board):
        assert set(consumed_by(profile.name, spot, gpu)) <= set(counters_of(gpu))


def test_a_gpu_without_mig_has_one_memory_slice() -> None:
    assert counters_of(uncuttable_gpu()) == {"memory-slice-0": 1}
