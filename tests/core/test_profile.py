"""MIG profile names: the grammar of the v1 layout format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.errors import UsageError
from tranche.core.profile import ProfileName, parse_profile

ATTRIBUTES = st.from_regex(r"[A-Za-z]([A-Za-z0-9.]{0,6}[A-Za-z0-9])?", fullmatch=True)


@st.composite
def profile_names(draw: st.DrawFn) -> ProfileName:
    slices = draw(st.integers(1, 16))
    compute = draw(st.sampled_from([slices, *(c for c in range(1, slices) if 2 * c <= slices + 1)]))
    attributes = tuple(sorted(draw(st.sets(ATTRIBUTES, max_size=3))))
    added = draw(st.booleans())
    return ProfileName(
        slices,
        draw(st.integers(0, 999)),
        compute,
        added=attributes if added else (),
        removed=() if added else attributes,
    )


@given(profile_names())
def test_a_name_reads_back_as_it_prints(name: ProfileName) -> None:
    assert parse_profile(str(name)) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1g.5gb", ProfileName(1, 5, 1)),
        ("7g.141gb", ProfileName(7, 141, 7)),
        ("1c.3g.20gb", ProfileName(3, 20, 1)),
        ("2c.3g.20gb", ProfileName(3, 20, 2)),
        ("1g.5gb+me", ProfileName(1, 5, 1, added=("me",))),
        ("1g.24gb+me.all", ProfileName(1, 24, 1, added=("me.all",))),
        ("2g.48gb+gfx", ProfileName(2, 48, 2, added=("gfx",))),
        ("1g.24gb-me", ProfileName(1, 24, 1, removed=("me",))),
        ("1g.5gb+me,gfx", ProfileName(1, 5, 1, added=("gfx", "me"))),
        ("1c.2g.10gb+me", ProfileName(2, 10, 1, added=("me",))),
    ],
)
def test_names_are_read(text: str, name: ProfileName) -> None:
    assert parse_profile(text) == name


@pytest.mark.parametrize(
    ("text", "canonical"), [("1c.1g.5gb", "1g.5gb"), ("7c.7g.40gb", "7g.40gb"), ("1g.5gb+me,gfx", "1g.5gb+gfx,me")]
)
def test_the_canonical_form_drops_what_goes_without_saying(text: str, canonical: str) -> None:
    assert str(parse_profile(text)) == canonical


@pytest.mark.parametrize(
    ("slices", "allowed"), [(1, {1}), (2, {1, 2}), (3, {1, 2, 3}), (4, {1, 2, 4}), (7, {1, 2, 3, 4, 7})]
)
def test_which_compute_instances_a_gpu_instance_can_hold(slices: int, allowed: set[int]) -> None:
    def is_allowed(compute: int) -> bool:
        try:
            parse_profile(f"{compute}c.{slices}g.5gb")
        except UsageError:
            return False
        return True

    assert {compute for compute in range(1, 10) if is_allowed(compute)} == allowed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1g",
        "1g.5",
        "5gb",
        "g.5gb",
        "1g.gb",
        "1g.5gb ",
        " 1g.5gb",
        "1g .5gb",
        "1G.5gb",
        "1g.5GB",
        "1g.5gb+",
        "1g.5gb-",
        "1g.5gb+me-gfx",
        "1g.5gb+me,",
        "1g.5gb+,me",
        "1g.5gb+me,me",
        "1g.5gb+1me",
        "1g.5gb+.me",
        "1g.5gb+me.",
        "1g.5gb+m_e",
        "1g.5gb+me gfx",
        "0g.5gb",
        "0c.1g.5gb",
        "3c.4g.20gb",
        "1.5g.5gb",
        "-1g.5gb",
        "1g.5gb\n",
        "mig-1g.5gb",
        "1" * 5000 + "g.5gb",
    ],
)
def test_what_breaks_the_grammar_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="is not a MIG profile name"):
        parse_profile(text)


def test_the_gpu_instance_of_a_slice_keeps_memory_and_attributes() -> None:
    assert str(parse_profile("1c.2g.10gb+me").gpu_instance) == "2g.10gb+me"
    assert parse_profile("2g.10gb").gpu_instance == parse_profile("2g.10gb")


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("1g.5gb", "mig-1g.5gb"),
        ("1g.5gb+me", "mig-1g.5gb.me"),
        ("1g.24gb+me.all", "mig-1g.24gb.me.all"),
        ("1g.24gb-me", "mig-1g.24gb-me"),
        ("1c.3g.20gb", "mig-1c.3g.20gb"),
    ],
)
def test_the_resource_name_is_the_device_plugins(text: str, resource: str) -> None:
    assert parse_profile(text).resource_name == resource
