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
from tranche.planning.decide.tables import PlacementTable, PossiblePlacement, arrangeable, geometry_of, place_cost


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


@pytest.mark.parametrize(
    ("key", "taken", "place", "cost"),
    [
        # 1 of 7 starts of 1g, which counts twice, 1 of 4 of 1g with double memory, 1 of 2 of 3g, and the whole GPU.
        ("A100-40GB", [], 0b0100_0000, (2 / 7 + 1 / 4 + 1 / 2 + 1) / 5.4),
        # Also 1 of 3 of 2g and the one of 4g: each counts a fifth.
        ("A100-40GB", [], 0b0000_0001, (2 / 7 + 1 / 4 + 1 / 3 / 5 + 1 / 2 + 1 / 5 + 1) / 5.4),
        # Where a 4g ends, the whole GPU would be free; where two 2g must end, it is further away.
        ("A100-40GB", [0b0000_1111], 0b0100_0000, (2 / 7 + 1 / 4 + 1 / 2 + 1 / 5) / 5.4),
        ("A100-40GB", [0b0000_0011, 0b0000_1100], 0b0100_0000, (2 / 7 + 1 / 4 + 1 / 2 + 1 / 25) / 5.4),
        ("A30-24GB", [], 0b0001, (2 / 4 + 1 / 2 + 1) / 4),
        ("A30-24GB", [0b0010], 0b0001, (2 / 4 + 1 / 2 / 5 + 1 / 5) / 4),
    ],
)
def test_a_place_costs_the_placements_that_it_takes(key: str, taken: list[int], place: int, cost: float) -> None:
    assert place_cost(by_key(key), taken, place, 0) == pytest.approx(cost)


@given(st.data())
def test_a_place_costs_less_beside_more_instances_and_more_with_each_cut(data: st.DataObject) -> None:
    table = geometry(data.draw(boards()))
    slots = [mask for shape in table.shapes for mask in shape.masks]
    place = data.draw(st.sampled_from(slots))
    taken: list[int] = []
    for other in data.draw(st.permutations(slots)):
        if not other & place and not any(other & each for each in taken):
            before = place_cost(table, taken, place, 0)
            taken.append(other)
            assert 0 < place_cost(table, taken, place, 0) <= before
    assert place_cost(table, taken, place, 1) > place_cost(table, taken, place, 0)
    assert place_cost(table, [*taken, place], place, 0) == place_cost(table, taken, place, 0)
