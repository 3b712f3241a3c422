"""MigFleet against the obvious model: what is given is free and legal, and it fails only when no GPU has room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import FAMILY_BOARDS, boards
from tranche.planning.fleet import MigFleet, Spot
from tranche.planning.policy import POLICIES, Policy
from tranche.planning.tables import geometry_of

policies = st.sampled_from(list(POLICIES.values()))


@given(st.data(), policies, st.integers(0, 5))
def test_it_gives_only_what_is_free_and_refuses_only_when_nothing_is(
    data: st.DataObject, policy: Policy, gpus: int
) -> None:
    board = data.draw(boards())
    assert board.memory_slices is not None
    geometry = geometry_of(board.memory_slices, board.profiles)
    fleet = MigFleet(geometry, gpus, policy)
    taken = [0] * gpus
    live: list[Spot] = []
    for _ in range(data.draw(st.integers(0, 60))):
        release = data.draw(st.booleans())
        if live and release:
            spot = live.pop(data.draw(st.integers(0, len(live) - 1)))
            fleet.release(spot)
            taken[spot.gpu] ^= spot.slices
        else:
            shape = data.draw(st.integers(0, len(geometry.shapes) - 1))
            placements = geometry.shapes[shape].masks
            got = fleet.place(shape)
            if got is None:
                assert all(mask & used for used in taken for mask in placements)
                continue
            assert got.slices in placements
            assert not taken[got.gpu] & got.slices
            costs = [
                policy.cost(geometry, used, used | mask) for used in taken for mask in placements if not mask & used
            ]
            assert policy.cost(geometry, taken[got.gpu], taken[got.gpu] | got.slices) == min(costs)
            taken[got.gpu] |= got.slices
            live.append(got)
        assert [fleet.mask(gpu) for gpu in range(gpus)] == taken


def test_a_place_is_given_back_once() -> None:
    a100 = next(each for each in FAMILY_BOARDS if each.key == "A100-40GB")
    fleet = MigFleet(geometry_of(8, a100.profiles), 2)
    spot = fleet.place(0)
    assert spot is not None
    fleet.release(spot)
    with pytest.raises(AssertionError, match="not taken"):
        fleet.release(spot)
