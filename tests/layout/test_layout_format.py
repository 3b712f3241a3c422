"""The v1 layout format: every rule, its message, and the oddities that are accepted."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.errors import LayoutInvalid, LayoutUnknown
from tranche.core.layout import Layout, LayoutFile, LayoutSpec, parse_device_filter
from tranche.core.layout_format import layouts_to_data, parse_layouts
from tranche.core.profile import parse_profile

GOOD: dict[str, Any] = {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}


def file_with(**changes: Any) -> dict[str, Any]:
    """A file with one entry: GOOD with those changes; None removes a key, underscores stand for dashes."""
    entry = copy.deepcopy(GOOD)
    for name, value in changes.items():
        entry[name.replace("_", "-")] = value
        if value is ...:
            del entry[name.replace("_", "-")]
    return {"version": "v1", "mig-configs": {"custom": [entry]}}


def spec_of(data: object) -> LayoutSpec:
    return parse_layouts(data).select(None).specs[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"mig-configs": {}}, "unable to parse with missing 'version' field"),
        ({"version": "v2"}, "unknown version: v2"),
        ({"version": 1}, "'version' must be a string"),
        ({"version": "v1", "mig-configs": {}}, "at least one entry in 'mig-configs' is required"),
        ({"version": "v1", "mig-configs": None}, "at least one entry in 'mig-configs' is required"),
        ({"version": "v1", "mig-configs": {"a": []}}, "at least one entry in 'a' is required"),
        ({"version": "v1", "mig-configs": {"a": None}}, "at least one entry in 'a' is required"),
        ({"version": "v1", "mig-configs": {"a": "all"}}, "'a' must be a list"),
        ({"version": "v1", "extra": 1}, "unexpected field: extra"),
        ({"version": "v1", "mig-configs": {"a": ["x"]}}, "layout 'a', entry 1: the entry must be a mapping"),
        ([], "the document must be a mapping"),
        ("version: v1", "the document must be a mapping"),
        (file_with(extra=1), "unexpected field: extra"),
        (file_with(devices=...), "missing required field: devices"),
        (file_with(mig_enabled=...), "missing required field: mig-enabled"),
        (file_with(devices="0"), "'devices' must be \"all\" or a list of integers, not the string '0'"),
        (file_with(devices="ALL"), "'devices' must be \"all\" or a list of integers, not the string 'ALL'"),
        (file_with(devices=7), "'devices' must be \"all\" or a list of integers, not the number 7"),
        (file_with(devices=["7"]), "an entry of 'devices' must be an integer, not the string '7'"),
        (file_with(devices=[1.5]), "an entry of 'devices' must be an integer, not the number 1.5"),
        (file_with(devices=[True]), "an entry of 'devices' must be an integer, not the boolean true"),
        (file_with(device_filter=0x20B210DE), "'device-filter' must be a string or a list of strings"),
        (file_with(device_filter=[0x20B210DE]), "'device-filter' must be a string or a list of strings"),
        (file_with(mig_enabled="true"), "'mig-enabled' must be true or false, not the string 'true'"),
        (file_with(mig_enabled=1), "'mig-enabled' must be true or false, not the number 1"),
        (file_with(mig_devices=...), "missing required field 'mig-devices' when 'mig-enabled' is true"),
        (file_with(mig_devices=None), "missing required field 'mig-devices' when 'mig-enabled' is true"),
        (file_with(mig_enabled=False), "MIG devices included when 'mig-enabled' is false"),
        (file_with(mig_enabled=False, mig_devices={"1g.10gb": 0}), "MIG devices included when 'mig-enabled' is false"),
        (file_with(mig_devices={"1g.10gb": "7"}), "the count of '1g.10gb' in 'mig-devices' must be an integer"),
        (file_with(mig_devices={"1g.10gb": 1.5}), "the count of '1g.10gb' in 'mig-devices' must be an integer"),
        (file_with(mig_devices={"1g.10gb": -1}), "error validating values in 'mig-devices' field: "),
        (file_with(mig_devices={"1g.10gb": 0}), "all counts for all MigProfiles are 0"),
        (file_with(mig_devices={"1g.10gb": 0, "2g.20gb": 0}), "error validating values in 'mig-devices' field: all"),
        (file_with(mig_devices={"1g": 1}), "error validating values in 'mig-devices' field: '1g' is not"),
        (file_with(mig_devices={"3c.4g.40gb": 1}), "error validating values in 'mig-devices' field: "),
        (file_with(mig_devices={"1g.10gb+me,me": 1}), "error validating values in 'mig-devices' field: "),
        (file_with(mig_devices={"1g.10gb+1me": 1}), "error validating values in 'mig-devices' field: "),
        (file_with(mig_devices={"1g.10gb +me": 1}), "error validating values in 'mig-devices' field: "),
        (file_with(mig_devices={"1g.10gb+me-gfx": 1}), "error validating values in 'mig-devices' field: "),
        (file_with(mig_devices=[1]), "'mig-devices' must be a mapping, not a list"),
    ],
)
def test_a_broken_rule_is_named(data: object, message: str) -> None:
    with pytest.raises(LayoutInvalid) as caught:
        parse_layouts(data)
    assert message in caught.value.message


def test_the_message_says_where() -> None:
    entries = [GOOD, {**GOOD, "devices": "0"}]
    with pytest.raises(LayoutInvalid, match=r"layout 'b', entry 2: 'devices' must be .* not the string '0'"):
        parse_layouts({"version": "v1", "mig-configs": {"a": [GOOD], "b": entries}})


@pytest.mark.parametrize("data", [None, {}, {"version": "v1"}])
def test_a_file_may_have_no_layouts(data: object) -> None:
    assert parse_layouts(data).layouts == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"devices": []}, {"devices": ()}),
        ({"devices": [-1]}, {"devices": (-1,)}),
        ({"devices": [1.0]}, {"devices": (1,)}),
        ({"devices": [99]}, {"devices": (99,)}),
        ({"mig_devices": {}}, {"slices": ()}),
        ({"mig_devices": {"1g.10gb": 2.0}}, {"slices": ((parse_profile("1g.10gb"), 2),)}),
        ({"mig_devices": {"1g.10gb": 1, "2g.20gb": 0}}, {"slices": ((parse_profile("1g.10gb"), 1),)}),
        ({"mig_enabled": False, "mig_devices": {}}, {"mig_enabled": False, "slices": ()}),
        ({"mig_enabled": False, "mig_devices": None}, {"mig_enabled": False}),
        ({"mig_enabled": False, "mig_devices": ...}, {"mig_enabled": False}),
        ({"mig_enabled": None, "mig_devices": ...}, {"mig_enabled": False}),
        ({"device_filter": ""}, {"filters": ()}),
        ({"device_filter": []}, {"filters": ()}),
        ({"device_filter": None}, {"filters": ()}),
        ({"mig_devices": {"9g.999gb+zz": 1000}}, {"slices": ((parse_profile("9g.999gb+zz"), 1000),)}),
    ],
)
def test_oddities_that_are_accepted(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    spec = spec_of(file_with(**changes))
    assert {name: getattr(spec, name) for name in expected} == expected


def test_one_profile_spelled_in_two_ways_is_counted_together() -> None:
    spec = spec_of(file_with(mig_devices={"1g.10gb": 1, "1c.1g.10gb": 2}))
    assert spec.slices == ((parse_profile("1g.10gb"), 3),)


def test_names_that_yaml_reads_as_numbers_or_booleans_are_text() -> None:
    file = parse_layouts({"version": "v1", "mig-configs": {8: [GOOD], True: [GOOD], 1.5: [GOOD]}})
    assert file.names == ("8", "true", "1.5")


def test_selecting() -> None:
    one = parse_layouts(file_with())
    assert one.select(None).name == "custom"
    assert one.select("custom").name == "custom"
    with pytest.raises(LayoutUnknown, match="selected mig-config not present: other"):
        one.select("other")
    two = parse_layouts({"version": "v1", "mig-configs": {"a": [GOOD], "b": [GOOD]}})
    with pytest.raises(
        LayoutUnknown, match="missing required flag 'selected-config' when more than one config available"
    ):
        two.select(None)
    with pytest.raises(LayoutUnknown, match="has no layouts"):
        LayoutFile().select(None)
    with pytest.raises(LayoutUnknown, match="selected mig-config not present: a"):
        LayoutFile().select("a")


@pytest.mark.parametrize(
    ("text", "device", "subsystem", "matches"),
    [
        ("0x20B210DE", "0x20B210DE", "0x000010DE", True),
        ("0x20b210de", "0x20B210DE", "0x000010DE", True),
        ("548540638", "0x20B210DE", "0x000010DE", True),
        ("0x20B210DE", "0x20B010DE", "0x000010DE", False),
        ("0x20B210DE:0x147F10DE", "0x20B210DE", "0x147F10DE", True),
        ("0x20B210DE:0x147F10DE", "0x20B210DE", "0x147E10DE", False),
        ("0x20B210DE:0x147F10DE", "0x20B210DE", "", False),
        ("20B210DE", "0x20B210DE", "0x000010DE", False),
        ("A100-SXM4-40GB", "0x20B210DE", "0x000010DE", False),
        ("!0x20B210DE", "0x20B010DE", "0x000010DE", False),
        ("0x20B210DE:", "0x20B210DE", "0x000010DE", False),
        ("0x20B210DE:0x1:0x2", "0x20B210DE", "0x00000001", False),
        ("0x120B210DE", "0x20B210DE", "0x000010DE", False),
        (" 0x20B210DE", "0x20B210DE", "0x000010DE", False),
        ("", "0x20B210DE", "0x000010DE", False),
    ],
)
def test_device_filters(text: str, device: str, subsystem: str, *, matches: bool) -> None:
    assert parse_device_filter(text).matches(device, subsystem) is matches


@pytest.mark.parametrize("text", ["20B210DE", "A100", "0x1:0x2:0x3", "0x120B210DE", "", "-1", "0x", "1e9"])
def test_malformed_filters_are_known_as_such(text: str) -> None:
    assert parse_device_filter(text).malformed


@given(st.text(alphabet="0123456789abcdefxobXOB_:-+ ", max_size=12))
def test_a_filter_never_raises(text: str) -> None:
    parsed = parse_device_filter(text)
    assert parsed.text == text
    assert parsed.malformed or not parsed.matches("0x00000000", "") or parsed.device == 0


profiles = st.sampled_from(["1g.5gb", "1g.5gb+me", "1g.24gb-me", "1c.3g.20gb", "7g.40gb", "1g.24gb+me.all"])
counts = st.dictionaries(profiles.map(parse_profile), st.integers(1, 9)).map(lambda d: tuple(sorted(d.items())))
filters = st.lists(
    st.sampled_from(["0x20B210DE", "0x20B210DE:0x147F10DE", "nonsense"]).map(parse_device_filter), max_size=3
)
specs = st.one_of(
    st.builds(
        LayoutSpec,
        st.just(True),
        counts,
        st.one_of(st.none(), st.lists(st.integers(-1, 20)).map(tuple)),
        filters.map(tuple),
    ),
    st.builds(LayoutSpec, st.just(False), st.just(()), st.none(), filters.map(tuple)),
)
files = st.dictionaries(st.text(min_size=1, max_size=8), st.lists(specs, min_size=1, max_size=3), min_size=1).map(
    lambda layouts: LayoutFile(tuple(Layout(name, tuple(listed)) for name, listed in layouts.items()))
)


@given(files)
def test_what_is_written_is_read_back(file: LayoutFile) -> None:
    assert parse_layouts(layouts_to_data(file)) == file


junk = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["all", "v1"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["version", "mig-configs", "devices", "mig-enabled", "mig-devices", "device-filter", "1g.5gb"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


@given(junk)
def test_any_document_is_read_or_refused_as_invalid(data: object) -> None:
    for document in (data, {"version": "v1", "mig-configs": {"a": [data]}}):
        with contextlib.suppress(LayoutInvalid):
            assert all(layout.specs for layout in parse_layouts(document).layouts)
