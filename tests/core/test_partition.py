"""What is to be cut at boot: the P4d article's file, the other spellings, and what is refused with which words."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import PLACEABLE_BOARDS
from tranche.core.errors import PartitionInvalid
from tranche.core.partition import BootSettings, PartitionSpec, parse_boot_settings, parse_partition
from tranche.core.profile import ProfileName, parse_profile

ARTICLE = "MIG_PARTITION=19,19,19,19,19,19,19\n"
NAMES = sorted(
    {profile.name for board in PLACEABLE_BOARDS for profile in board.profiles if "," not in str(profile.name)}
)
SMALL = parse_profile("1g.5gb")


def test_the_articles_file() -> None:
    wanted = PartitionSpec("19,19,19,19,19,19,19", ((19, 7),))
    assert parse_boot_settings(ARTICLE, "mig") == BootSettings(wanted)


@pytest.mark.parametrize(
    ("value", "slices"),
    [
        ("9", ((9, 1),)),
        ("0", ((0, 1),)),
        ("9,14,19,19", ((9, 1), (14, 1), (19, 2))),
        ("7*19", ((19, 7),)),
        ("7 * 1g.5gb", ((SMALL, 7),)),
        ("1g.5gb,19", ((SMALL, 1), (19, 1))),
        (" 19 , 19 ", ((19, 2),)),
        ("1g.10gb+me,2*1g.24gb-me", ((parse_profile("1g.10gb+me"), 1), (parse_profile("1g.24gb-me"), 2))),
    ],
)
def test_spellings(value: str, slices: tuple[tuple[int | ProfileName, int], ...]) -> None:
    parsed = parse_partition(value)
    assert isinstance(parsed, PartitionSpec)
    assert parsed.slices == slices


@pytest.mark.parametrize("name", ["all-1g.5gb", "all-disabled", "all-1g.24gb.me.all", "custom_config"])
def test_a_word_is_the_name_of_a_layout(name: str) -> None:
    assert parse_partition(name) == name


@given(st.lists(st.one_of(st.integers(0, 9999), st.sampled_from(NAMES)), min_size=1, max_size=12), st.booleans())
def test_written_one_by_one_or_counted_it_is_the_same(profiles: list[int | ProfileName], spaced: bool) -> None:
    counts = Counter(profiles)
    comma = ", " if spaced else ","
    one_by_one = parse_partition(comma.join(map(str, profiles)))
    counted = parse_partition(comma.join(f"{count}*{profile}" for profile, count in counts.items()))
    assert isinstance(one_by_one, PartitionSpec)
    assert isinstance(counted, PartitionSpec)
    assert one_by_one.slices == counted.slices == tuple(counts.items())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "is empty"),
        ("19,", "a profile is missing"),
        ("19,,19", "a profile is missing"),
        ("0*19", "asks for zero slices"),
        ("7*", "'7*'"),
        ("19:4", "includes a placement"),
        ("1g.5gb:0", "includes a placement"),
        ("19 19", "is not a profile"),
        ("$PROFILES", "not a MIG profile name"),
        ("-1", "not a MIG profile name"),
        ("19,seven", "not a MIG profile name"),
        ("99999", "not a MIG profile name"),
        ("999999*19", "no GPU has room for that many"),
    ],
)
def test_what_is_refused(value: str, words: str) -> None:
    with pytest.raises(PartitionInvalid) as refused:
        parse_boot_settings(f"MIG_PARTITION={value}\n", "/etc/default/mig")
    assert words in refused.value.message
    assert "/etc/default/mig" in refused.value.message


@pytest.mark.parametrize(
    "text",
    [
        "# by cloud-init\n\n; and by hand\nMIG_PARTITION='7*19'\n",
        'MIG_PARTITION="7*19"',
        "MIG_PARTITION=9\nMIG_PARTITION=7*19\n",
        "  MIG_PARTITION=7*19  \r\nOTHER=x\n",
    ],
)
def test_the_file_is_one_of_assignments(text: str) -> None:
    assert parse_boot_settings(text, "mig").wanted == PartitionSpec("7*19", ((19, 7),))


def test_a_layout_of_a_file() -> None:
    text = "MIG_PARTITION=custom\nMIG_PARTED_CONFIG_FILE=/etc/tranche/layouts.yaml\n"
    assert parse_boot_settings(text, "mig") == BootSettings("custom", "/etc/tranche/layouts.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not set MIG_PARTITION"),
        ("MIG_PARTITON=19\n", "does not set MIG_PARTITION"),
        ("\nMIG_PARTITION 19\n", "line 2 is not an assignment"),
        ("export MIG_PARTITION=19\n", "line 1 is not an assignment"),
        ("MIG_PARTITION='19\n", "a quote is not closed"),
        ('MIG_PARTITION=19"\n', "a quote is not closed"),
    ],
)
def test_a_file_that_is_refused(text: str, words: str) -> None:
    with pytest.raises(PartitionInvalid, match=words) as refused:
        parse_boot_settings(text, "/etc/default/mig")
    assert refused.value.hint


def test_a_misspelled_name_is_shown() -> None:
    with pytest.raises(PartitionInvalid) as refused:
        parse_boot_settings("MIG_PARTITON=19\n", "mig")
    assert "it sets MIG_PARTITON" in refused.value.hint
