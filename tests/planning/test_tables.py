"""The mask tables: the sizes that are known for each family, and what they prefer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from bench.optimum import maximal_packings
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import FAMILY_BOARDS, boards, gpu_on, placed, view_of
from tranche.core.allocation import Allocation, NodeView, Phase
from tranche.core.board import Board, board_by_key
from tranche.core.grid import Occupant, Placement, arrange
from tranche.core.profile import parse_profile
from tranche.core.request import parse_request
from tranche.planning.allocate import Granted, decide
from tranche.planning.policy import BEST_FIT, DEFAULT, FIRST_FIT, FRAGMENTATION_GRADIENT, Policy
from tranche.planning.tables import Geometry, Shape, arrangeable, fragmentation, geometry_of


def geometry(board: Board) -> Geometry:
    assert board.memory_slices is not None
    return geometry_of(board.memory_slices, board.profiles)


@cache
def reachable_masks(geometry: Geometry) -> tuple[int, ...]:
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


def by_key(key: str) -> Geometry:
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


@given(st.data())
def test_fragmentation_stays_within_the_free_room(data: st.DataObject) -> None:
    grid = geometry(data.draw(boards()))
    mask = data.draw(st.sampled_from(reachable_masks(grid)))
    free = grid.units - mask.bit_count()
    assert 0 <= fragmentation(grid, mask) <= free


@pytest.mark.parametrize("policy", [FRAGMENTATION_GRADIENT, DEFAULT], ids=lambda policy: policy.name)
@pytest.mark.parametrize(("name", "starts"), [("1g.5gb", {6}), ("1g.10gb", {6}), ("2g.10gb", {4}), ("3g.20gb", {4})])
def test_the_first_slice_on_an_empty_gpu_goes_where_it_loses_least(policy: Policy, name: str, starts: set[int]) -> None:
    """The starts that keep 4g possible and the most of the other profiles."""
    board = board_by_key("A100-40GB")
    assert board is not None
    decision = decide(view_of(gpu_on(board)), parse_request(mig_profile=name), policy=policy)
    assert isinstance(decision, Granted)
    assert decision.grants[0].slot is not None
    assert decision.grants[0].slot.placement.start in starts


@given(st.data())
def test_arrangeable_agrees_with_the_search_of_the_grid(data: st.DataObject) -> None:
    board = data.draw(boards())
    profiles = data.draw(st.lists(st.sampled_from([p for p in placed(board) if not p.name.has_attributes]), max_size=8))
    mask = data.draw(st.sampled_from(reachable_masks(geometry(board))))
    shapes = tuple(sorted((Shape(p.size, p.starts) for p in profiles), key=lambda shape: -shape.size))
    blocked = [Occupant(parse_profile("1g.1gb"), Placement(bit, 1)) for bit in range(12) if mask >> bit & 1]
    assert arrangeable(shapes, mask) == (arrange(profiles, blocked) is not None)


def test_first_fit_and_best_fit_do_what_their_names_say() -> None:
    board = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")
    empty, half = gpu_on(board, 0), gpu_on(board, 1)
    view = view_of(empty, half)
    held = decide(view_of(half), parse_request(mig_profile="4g.20gb"))
    assert isinstance(held, Granted)
    view = _holding(view, held)
    request = parse_request(mig_profile="1g.5gb")
    first, best = decide(view, request, policy=FIRST_FIT), decide(view, request, policy=BEST_FIT)
    assert isinstance(first, Granted)
    assert isinstance(best, Granted)
    assert first.grants[0].gpu_uuid == empty.uuid
    assert first.grants[0].slot is not None
    assert first.grants[0].slot.placement.start == 0
    assert best.grants[0].gpu_uuid == half.uuid


def _holding(view: NodeView, granted: Granted) -> NodeView:
    request = parse_request(mig_profile="4g.20gb")
    return replace(view, allocations=(Allocation("a-1", request, granted.grants, Phase.ACTIVE, 0.0),))
