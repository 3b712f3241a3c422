"""Packing compute slices into GPU instances."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.board import GpuInstanceProfile, board_by_key
from tranche.core.grid import creation_order
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.state import ComputeInstance
from tranche.planning.layouts.recut import pack_slices


def gi(name: str) -> GpuInstanceProfile:
    board = board_by_key("A100-40GB")
    assert board is not None
    profile = board.profile(parse_profile(name))
    assert profile is not None
    return profile


def slices(profile: str, *sizes: int) -> list[ProfileName]:
    return [parse_profile(f"{size}c.{profile}") for size in sizes]


def sizes(contents: tuple[tuple[ProfileName, ...], ...]) -> list[list[int]]:
    return [[name.compute for name in inside] for inside in contents]


def one_c(start: int) -> ComputeInstance:
    return ComputeInstance(0, parse_profile("1c.3g.20gb"), 0, start, 1, "", None)


@pytest.mark.parametrize(
    ("profile", "wanted", "expected"),
    [
        ("3g.20gb", [1, 1, 2, 2], 2),
        ("3g.20gb", [2, 2, 2], 3),
        ("4g.20gb", [2, 1, 1, 4], 2),
        ("7g.40gb", [3, 3, 2, 2, 2, 2], 2),
        ("7g.40gb", [4, 3, 7], 2),
        ("7g.40gb", [], 0),
    ],
)
def test_as_few_instances_as_possible(profile: str, wanted: list[int], expected: int) -> None:
    packing = pack_slices(gi(profile), slices(profile, *wanted))
    assert packing is not None
    assert len(packing) == expected
    assert sorted(chain(*sizes(packing))) == sorted(wanted)


def test_begun_instances_are_continued_and_empty_ones_filled() -> None:
    one = slices("3g.20gb", 1)
    packing = pack_slices(gi("3g.20gb"), one, [[one_c(2)], []])
    assert packing is not None
    assert sizes(packing) == [[1], [1]]
    more = pack_slices(gi("3g.20gb"), slices("3g.20gb", 2, 2), [[one_c(2)]])
    assert more is not None
    assert sizes(more) == [[2, 1], [2]]


def test_a_slice_in_the_middle_leaves_no_room_for_a_larger_one() -> None:
    """A 2c starts at 0 or 2 of a 3g: beside a 1c at 0 it has no room, beside one at 2 it has."""
    for start, created in [(0, 1), (1, 1), (2, 0)]:
        packing = pack_slices(gi("3g.20gb"), slices("3g.20gb", 2), [[one_c(start)]])
        assert packing is not None
        assert len(packing) == 1 + created


def test_a_slice_that_the_profile_lacks() -> None:
    assert pack_slices(gi("3g.20gb"), [ProfileName(3, 20, 9)]) is None


@given(st.lists(st.sampled_from([1, 2, 3, 4, 7]), max_size=6))
def test_every_slice_is_packed_once_and_no_instance_overflows(wanted: list[int]) -> None:
    packing = pack_slices(gi("7g.40gb"), slices("7g.40gb", *wanted))
    assert packing is not None
    assert Counter(chain(*sizes(packing))) == Counter(wanted)
    assert all(creation_order(inside, 7) is not None for inside in packing)
    assert len(packing) >= -(-sum(wanted) // 7)
