"""Amounts of memory and shares of a GPU: what is read, what is refused, what is printed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.errors import UsageError
from tranche.core.quantity import (
    GIB,
    MIB,
    format_fraction,
    format_memory,
    memory_option,
    parse_duration,
    parse_fraction,
    parse_memory,
)
from tranche.documents import describe


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4G", 4_000_000_000),
        ("4GB", 4_000_000_000),
        ("4Gi", 4 * GIB),
        ("4GiB", 4 * GIB),
        ("4 GiB", 4 * GIB),
        ("4000M", 4_000_000_000),
        ("512Mi", 512 * MIB),
        ("1.5Gi", 1536 * MIB),
        ("1Ti", 1024 * GIB),
        ("1K", 1000),
        ("1Ki", 1024),
        (" 1G ", 1_000_000_000),
        ("0.0001K", 1),
    ],
)
def test_memory_is_read_in_decimal_and_binary_units(text: str, amount: int) -> None:
    assert parse_memory(text) == amount


@pytest.mark.parametrize(
    "text", ["", "G", "-1G", "+1G", "4g", "4B", "4KiBB", "4e3M", "1,5G", ".5G", "5.G", "4 GPU", "٤G", "inf", "9" * 5000]
)
def test_what_is_not_an_amount_of_memory_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="is not an amount of memory") as caught:
        parse_memory(text)
    assert "4Gi" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [("16", "16G"), (" 0.5 ", "0.5G"), ("80", "80G"), ("2000", "2000Mi"), ("16384", "16384Mi")],
)
def test_an_amount_without_a_unit_is_refused_with_the_one_that_was_meant(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="has no unit") as caught:
        parse_memory(text)
    assert caught.value.hint == f"write it as {hint}"


@pytest.mark.parametrize("text", ["0", "0G", "0.0Mi"])
def test_no_memory_at_all_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="more than 0"):
        parse_memory(text)


@given(st.integers(1, 10**15))
def test_memory_as_an_option_reads_back_to_the_same_bytes(amount: int) -> None:
    assert parse_memory(memory_option(amount)) == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    [(4 * GIB, "4Gi"), (4_000_000_000, "4G"), (4864 * MIB, "4864Mi"), (1_500_000_000, "1500M"), (1234, "1.234K")],
)
def test_memory_as_an_option_is_the_shortest_whole_number(amount: int, text: str) -> None:
    assert memory_option(amount) == text


@pytest.mark.parametrize("text", ["14.4Gi", "0.3Gi", "7.45Gi", "1.055Ti", "511.7Mi"])
def test_memory_that_is_no_whole_number_of_bytes_is_shown_as_it_was_written(text: str) -> None:
    assert memory_option(parse_memory(text)) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (20096 * MIB, "19.62 GiB"),
        (40 * GIB, "40 GiB"),
        (512 * MIB, "512 MiB"),
        (GIB - 1, "1024 MiB"),
        (GIB, "1 GiB"),
        (0, "0 MiB"),
    ],
)
def test_memory_is_shown_to_people_in_gib_as_nvidia_smi_does(amount: int, text: str) -> None:
    assert format_memory(amount) == text


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("0.5", Fraction(1, 2)),
        (".25", Fraction(1, 4)),
        ("1", Fraction(1)),
        ("1.0", Fraction(1)),
        ("50%", Fraction(1, 2)),
        ("12.5 %", Fraction(1, 8)),
        ("100%", Fraction(1)),
        (" 0.1 ", Fraction(1, 10)),
    ],
)
def test_a_share_is_read_exactly(text: str, share: Fraction) -> None:
    assert parse_fraction(text) == share


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "more than 0"),
        ("0.000", "more than 0"),
        ("1.5", "more than one GPU"),
        ("2", "more than one GPU"),
        ("-0.5", "is not a share"),
        ("half", "is not a share"),
        ("1/2", "is not a share"),
        ("0%", "more than 0"),
        ("150%", "more than one GPU"),
        ("%", "is not a share"),
        ("50%%", "is not a share"),
        ("1e-1", "is not a share"),
        ("", "is not a share"),
        ("0." + "5" * 5000, "is not a share"),
    ],
)
def test_what_is_not_a_share_of_one_gpu_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_fraction(text)


def test_more_than_one_gpu_is_answered_with_the_option_for_whole_gpus() -> None:
    with pytest.raises(UsageError) as caught:
        parse_fraction("1.5")
    assert "--gpus" in caught.value.hint


@given(st.integers(1, 10**18), st.integers(0, 18))
def test_a_share_prints_as_it_can_be_read_back(numerator: int, digits: int) -> None:
    share = Fraction(numerator, 10**digits)
    if share <= 1:
        assert parse_fraction(format_fraction(share)) == share


def test_a_share_without_a_finite_decimal_is_rounded() -> None:
    assert format_fraction(Fraction(1, 3)) == "0.333"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("90", 90.0),
        ("0.1", 0.1),
        (".5", 0.5),
        ("10.", 10.0),
        ("30s", 30.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("2d1h2m3.5s", 176_523.5),
        ("250ms", 0.25),
        (" 5m ", 300.0),
    ],
)
def test_a_span_of_time_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "-5", "-5s", "5x", "m", "10 m", "30m1h", "1h1h", "1e3", "nan", "inf", "1:30", "5" * 5000, "٣s"]
)
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration(text)


def test_a_span_of_time_is_at_most_a_year() -> None:
    assert parse_duration("366d") == 31_622_400
    with pytest.raises(UsageError, match="longer than a year"):
        parse_duration("999999999999999999")


@given(st.integers(0, 366 * 86_400 - 1))
def test_an_age_as_it_is_shown_can_be_read(seconds: int) -> None:
    assert seconds - 3600 < parse_duration(describe.age(seconds)) <= seconds
