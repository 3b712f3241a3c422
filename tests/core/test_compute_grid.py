"""How compute instances lie inside a GPU instance."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.grid import creation_order, lowest_start
from tranche.core.profile import ProfileName

WIDTH = 7


def names(*sizes: int) -> list[ProfileName]:
    return [ProfileName(WIDTH, 40, size) for size in sizes]


def made_in_order(order: tuple[ProfileName, ...], taken: int) -> bool:
    """Whether each finds room where the driver puts it."""
    for name in order:
        start = lowest_start(name.compute, WIDTH, taken)
        if start is None:
            return False
        taken |= ((1 << name.compute) - 1) << start
    return True


@pytest.mark.parametrize(
    ("size", "taken", "expected"),
    [(1, 0b1, 1), (2, 0b1, 2), (3, 0b1, 4), (4, 0b1, None), (3, 0b10000, 0), (2, 0b0010101, None), (7, 0, 0)],
)
def test_the_lowest_free_start_is_a_multiple_of_the_next_power_of_two(
    size: int, taken: int, expected: int | None
) -> None:
    assert lowest_start(size, WIDTH, taken) == expected


@given(st.lists(st.sampled_from([1, 2, 3, 4, 7]), max_size=5), st.integers(0, 127))
def test_an_order_is_found_exactly_where_there_is_one(sizes: list[int], taken: int) -> None:
    order = creation_order(names(*sizes), WIDTH, taken)
    if order is None:
        assert not any(made_in_order(each, taken) for each in permutations(names(*sizes)))
    else:
        assert sorted(order) == sorted(names(*sizes))
        assert made_in_order(order, taken)


def test_the_largest_comes_first_wherever_that_is_possible() -> None:
    assert [name.compute for name in creation_order(names(1, 2, 4), WIDTH) or ()] == [4, 2, 1]
    assert [name.compute for name in creation_order(names(2, 2, 3), WIDTH) or ()] == [2, 3, 2]
