"""Families of boards: each board has one, and drivers name them by numbers that are unique enough."""

from __future__ import annotations

import pytest

from tranche.core.board import all_families, catalogue, family_of_architecture, family_of_capability


def test_every_board_has_a_family_that_its_capability_and_number_name() -> None:
    for board in catalogue():
        major, minor = map(int, board.compute_capability.split("."))
        family = family_of_capability(major, minor)
        assert family is not None
        assert family.name == board.architecture
        assert family_of_architecture(family.nvml_architecture, board.architecture) == family
        assert family_of_architecture(None, board.architecture) == family


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (2, "Kepler"),
        (5, "Volta"),
        (6, "Turing"),
        (7, "Ampere"),
        (8, "Ada"),
        (9, "Hopper"),
        (10, "Blackwell"),
        (99, None),
    ],
)
def test_a_driver_names_the_family_of_a_board_that_nobody_knows(number: int, name: str | None) -> None:
    family = family_of_architecture(number, None)
    assert (None if family is None else family.name) == name
    assert family_of_architecture(None, None) is None


def test_a_capability_is_of_one_family_at_most() -> None:
    for major in range(20):
        for minor in range(10):
            found = [f for f in all_families() if any(m == major and a <= minor <= b for m, a, b in f.capabilities)]
            assert len(found) <= 1
