"""Where a driver's answers differ from the catalogue's, and which of that is news."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.strategies import gpu_on
from tranche.core.board import Board, GpuInstanceProfile, board_by_key
from tranche.core.board_difference import board_differences
from tranche.core.profile import parse_profile
from tranche.core.quantity import MIB
from tranche.core.state import GpuState


def board(key: str) -> Board:
    found = board_by_key(key)
    assert found is not None
    return found


def seen(known: Board, *profiles: GpuInstanceProfile) -> GpuState:
    """A GPU of the board whose driver tells those profiles."""
    return replace(gpu_on(known), profiles=profiles, profiles_source="driver")


def with_change(known: Board, name: str, /, **fields: Any) -> GpuState:
    """A GPU of the board whose driver tells what the catalogue does, but for those fields of one profile."""
    return seen(known, *(p._replace(**fields) if str(p.name) == name else p for p in known.profiles))


def test_a_driver_that_says_the_same_differs_in_nothing() -> None:
    known = board("A100-40GB")
    assert board_differences(seen(known, *reversed(known.profiles)), known) == ()


def test_the_catalogue_is_not_compared_with_itself() -> None:
    known = board("A100-40GB")
    changed = replace(with_change(known, "1g.5gb", sm=15), profiles_source="catalogue")
    assert board_differences(changed, known) == ()


def test_each_field_that_differs_is_named_with_both_values() -> None:
    known = board("A100-40GB")
    changed = with_change(known, "2g.10gb", id=99, sm=30, starts=(0, 2), max_instances=2)
    found = board_differences(changed, known)
    assert {(d.field, d.driver, d.catalogue, d.explained) for d in found} == {
        ("id", "99", "14", ""),
        ("sm", "30", "28", ""),
        ("starts", "{0,2}", "{0,2,4}", ""),
        ("max_instances", "2", "3", ""),
    }
    assert all(d.profile == "2g.10gb" for d in found)


def test_memory_that_other_drivers_reported_is_no_news() -> None:
    known = board("A100-40GB")
    (found,) = board_differences(with_change(known, "2g.10gb", memory=9856 * MIB), known)
    assert (found.driver, found.catalogue, found.explained) == ("9856 MiB", "9984 MiB", "known from other drivers")
    (news,) = board_differences(with_change(known, "2g.10gb", memory=9857 * MIB), known)
    assert news.explained == ""


def test_values_without_a_source_are_explained() -> None:
    inferred = board("A30X-24GB")
    (found,) = board_differences(with_change(inferred, "1g.6gb", sm=12), inferred)
    assert found.explained == "unverified in the catalogue"
    absent = board("GB200")
    (found,) = board_differences(with_change(absent, "3g.93gb", memory=93000 * MIB), absent)
    assert (found.catalogue, found.explained) == ("-", "the catalogue has no source for it")


def test_profiles_that_only_one_side_knows_are_named() -> None:
    known = board("A100-40GB")
    fewer = board_differences(seen(known, *known.profiles[1:]), known)
    assert [(d.profile, d.driver) for d in fewer] == [(str(known.profiles[0].name), "-")]
    extra = known.profiles[0]._replace(enum=17, name=parse_profile("1g.5gb+gfx"))
    more = board_differences(seen(known, *known.profiles, extra), known)
    assert [(d.profile, d.catalogue) for d in more] == [("1g.5gb+gfx", "-")]


def test_a_name_that_differs_is_told() -> None:
    known = board("H200-141GB")
    (found,) = board_differences(with_change(known, "2g.35gb", name=parse_profile("2g.36gb")), known)
    assert (found.field, found.driver, found.catalogue) == ("name", "2g.36gb", "2g.35gb")
