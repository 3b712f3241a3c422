"""What an agent says of layouts beside its view: whole or not at all, and never in the way of the view."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.devices.test_order import a100s
from tranche.core.errors import UsageError
from tranche.core.layout import Layout, LayoutFile, LayoutSpec, parse_device_filter
from tranche.core.profile import parse_profile
from tranche.kubernetes.telling.packing import packed, unpacked
from tranche.kubernetes.telling.told_view import (
    MOST_BYTES,
    MOST_LAYOUT_BYTES,
    NOT_MANAGED,
    LayoutReport,
    ViewReport,
    layouts_from_text,
    layouts_to_text,
    marked,
    told,
    told_from_lease,
    told_to_lease,
)
from tranche.planning.layouts.named_layouts import LayoutList

OWNER = ("n1", "uid-n1")
PROFILES = st.sampled_from(
    [parse_profile(each) for each in ("1g.5gb", "2g.10gb", "3g.20gb", "1c.3g.20gb", "1g.5gb+me")]
)


@st.composite
def specs(draw: st.DrawFn) -> LayoutSpec:
    slices = draw(st.dictionaries(PROFILES, st.integers(1, 7), min_size=1))
    enabled = draw(st.booleans())
    devices = draw(st.none() | st.lists(st.integers(0, 7)).map(tuple))
    filters = draw(
        st.lists(st.sampled_from(["0x20B210DE", "0x233010DE", "no id"]).map(parse_device_filter), max_size=2)
    )
    return LayoutSpec(enabled, tuple(sorted(slices.items())) if enabled else (), devices, tuple(filters))


@st.composite
def offers(draw: st.DrawFn) -> LayoutList:
    names = draw(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), unique=True, max_size=4))
    layouts = [Layout(each, tuple(draw(st.lists(specs(), min_size=1, max_size=3)))) for each in sorted(names)]
    declared = LayoutFile(tuple(layouts)) if draw(st.booleans()) else None
    return LayoutList(draw(st.sampled_from(["", "tranche/layouts"])), declared, draw(st.sampled_from(["", "not YAML"])))


def many() -> LayoutList:
    """More layouts than can be told; names that cannot be compressed."""
    words = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(2_000))
    return LayoutList("a/b", LayoutFile(tuple(Layout(each, (LayoutSpec(False),)) for each in words)))


@given(offers(), st.sampled_from(["wait", "refuse", "drain"]), st.booleans(), st.booleans())
def test_what_is_told_is_what_the_agent_has(offer: LayoutList, policy: str, modes: bool, turns: bool) -> None:
    said = LayoutReport(True, policy, modes, turns, offer)
    assert layouts_from_text(layouts_to_text(said)) == said
    lease = told_to_lease(ViewReport("n1", a100s(1), layouts=said), OWNER)
    assert told_from_lease(lease).layouts == said


def test_too_many_layouts_are_said_to_be_too_many_and_cost_the_view_nothing() -> None:
    lease = told_to_lease(ViewReport("n1", a100s(1), layouts=LayoutReport(True, "wait", offer=many())), OWNER)
    assert told_from_lease(lease).layouts == LayoutReport(True, "wait", offer=None)
    assert told_from_lease(lease).view == a100s(1)
    assert MOST_BYTES + MOST_LAYOUT_BYTES < 256 * 1024


@pytest.mark.parametrize("text", ["", "%", "AAAA", packed([]), packed({"format": 2}), packed({"format": 1})])
def test_what_is_not_understood_is_not_known_and_the_view_is(text: str) -> None:
    with pytest.raises(UsageError):
        layouts_from_text(text)
    lease = told_to_lease(ViewReport("n1", a100s(1), layouts=NOT_MANAGED), OWNER)
    broken = replace(lease, annotations={**lease.annotations, "tranche.dev/layouts": text})
    assert told_from_lease(lease).layouts == NOT_MANAGED
    assert told_from_lease(broken).layouts is None
    assert told_from_lease(broken).view == a100s(1)


def test_an_agent_that_tells_nothing_of_layouts_is_read_as_before() -> None:
    heard = told_from_lease(told_to_lease(ViewReport("n1", a100s(1)), OWNER))
    assert (heard.layouts, heard.marked) == (None, frozenset())


def test_a_gpu_that_is_marked_is_told_apart_from_one_that_is_being_cut() -> None:
    view = a100s(3)
    first, second, third = (gpu.uuid for gpu in view.node)
    working = replace(view, changing=frozenset({second}))
    waiting = marked(working, [first, second])
    assert waiting == {first}
    heard = told_from_lease(told_to_lease(ViewReport("n1", told(working, [first, second]), marked=waiting), OWNER))
    assert heard.view.changing == {first, second}
    assert heard.marked == {first}
    # Nobody is freed by a mark of a GPU of which no change is told.
    lying = told_from_lease(told_to_lease(ViewReport("n1", told(working), marked=frozenset({third})), OWNER))
    assert lying.marked == frozenset()


def test_data_are_the_same_text_and_more_than_any_node_tells_is_not_read() -> None:
    assert packed({"b": 1, "a": [2]}) == packed({"a": [2], "b": 1})
    assert unpacked(packed({"a": "é\U0001f680"})) == {"a": "é\U0001f680"}
    with pytest.raises(ValueError, match="too long"):
        unpacked(packed("x" * (16 * 1024**2)))
