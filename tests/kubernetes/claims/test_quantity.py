"""Kubernetes' quantities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.errors import UsageError
from tranche.kubernetes.claims.quantity import format_bytes, parse_quantity, parse_whole


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4Gi", 4 << 30),
        ("4864Mi", 4864 << 20),
        ("4G", 4 * 10**9),
        ("100m", 1),
        ("1e3", 1000),
        ("1.5Ki", 1536),
        ("0", 0),
        ("2E", 2 * 10**18),
        ("12E2", 1200),
    ],
)
def test_a_quantity_is_a_whole_number(text: str, amount: int) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize("text", ["", "4GiB", "Gi", "4 Gi", "1e", "٤", "1e999", "0x10"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(("text", "amount"), [("4Gi", 4 << 30), ("1.5Ki", 1536), ("2000m", 2), ("-40", -40), ("0", 0)])
def test_a_whole_number_is_read_with_its_sign(text: str, amount: int) -> None:
    assert parse_whole(text) == amount


@pytest.mark.parametrize("text", ["1500m", "0.5", "1n", "-1m"])
def test_what_is_no_whole_number_is_not_rounded(text: str) -> None:
    with pytest.raises(UsageError, match="not a whole number"):
        parse_whole(text)


@given(st.integers(0, 1 << 62))
def test_bytes_are_read_back_as_they_were_written(amount: int) -> None:
    assert parse_quantity(format_bytes(amount)) == amount


def test_the_largest_unit_is_written() -> None:
    assert [format_bytes(each) for each in (0, 1000, 1 << 30, 4864 << 20)] == ["0", "1000", "1Gi", "4864Mi"]
