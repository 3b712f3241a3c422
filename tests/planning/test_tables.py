"""The mask tables: the sizes that are known for each family, and what they prefer."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.packings import maximal_packings
from tests.strategies import boards, gpu_on, placed, view_of
from tranche.core.board import Board, board_by_key
from tranche.core.grid import PlacedInstance, Placement, arrange
from tranche.core.profile import parse_profile
from tranche.core.request import parse_request
from tranche.planning.decide.allocate import Granted, decide
from tranche.planning.decide.tables import PlacementTable, PossiblePlacement, arrangeable, geometry_of


def geometry(board: Board) -> PlacementTable:
    assert board.memory_slices is not None
    return geometry_of(board.memory_slices, board.profiles)


@cache
def reachable_masks(geometry: PlacementTable) -> tuple[int, ...]:
    """Every occupancy mask that instances can make, lowest first."""
    found = {0}
    frontier = [0]
    while frontier:
        mask = frontier.pop()
        for shape in geometry.shapes:
            for slices in shape.masks:
                if not slices & mask and mask | slices not in found:
                    found.add(mask | slices)
                    frontier.append(mask | slices)
    return tuple(sorted(found))


def by_key(key: str) -> PlacementTable:
    board = board_by_key(key)
    assert board is not None
    return geometry(board)


@pytest.mark.parametrize(
    ("key", "masks", "packings"),
    [("A100-40GB", 192, 28), ("H200-141GB", 192, 28), ("A30-24GB", 16, 4), ("RTX-PRO-6000-96GB", 16, 4)],
)
def test_the_counts_that_are_known(key: str, masks: int, packings: int) -> None:
    assert len(reachable_masks(by_key(key))) == masks
    assert len(maximal_packings(by_key(key))) == packings


def test_boards_of_one_family_share_a_table() -> None:
    assert by_key("A100-40GB") == by_key("B200")


@pytest.mark.parametrize(("name", "starts"), [("1g.5gb", {6}), ("1g.10gb", {6}), ("2g.10gb", {4}), ("3g.20gb", {4})])
def test_the_first_slice_on_an_empty_gpu_goes_where_it_loses_least(name: str, starts: set[int]) -> None:
    """The starts that keep 4g possible and the most of the other profiles."""
    board = board_by_key("A100-40GB")
    assert board is not None
    decision = decide(view_of(gpu_on(board)), parse_request(mig_profile=name))
    assert isinstance(decision, Granted)
    assert decision.grants[0].slot is not None
    assert decision.grants[0].slot.placement.start in starts


@given(st.data())
def test_arrangeable_agrees_with_the_search_of_the_grid(data: st.DataObject) -> None:
    board = data.draw(boards())
    profiles = data.draw(st.lists(st.sampled_from([p for p in placed(board) if not p.name.has_attributes]), max_size=8))
    mask = data.draw(st.sampled_from(reachable_masks(geometry(board))))
    shapes = tuple(sorted((PossiblePlacement(p.size, p.starts) for p in profiles), key=lambda shape: -shape.size))
    blocked = [PlacedInstance(parse_profile("1g.1gb"), Placement(bit, 1)) for bit in range(12) if mask >> bit & 1]
    assert arrangeable(shapes, mask) == (arrange(profiles, blocked) is not None)
