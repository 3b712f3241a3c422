"""Moments as people write them: right across changes of the clock, or refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tranche.core.errors import UsageError
from tranche.core.moment import parse_moment, said, span

NOW = datetime(2026, 3, 24, 10, 30, tzinfo=UTC).timestamp()
"""A Tuesday, 11:30 in Berlin; the clock is set forward on the Sunday after."""
HOUR, DAY = 3600.0, 86_400.0


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as there:
        there.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2026-03-25 09:00", "Wed 2026-03-25 09:00 CET"),
        ("2026-03-25T09:00:30", "Wed 2026-03-25 09:00:30 CET"),
        ("2026-03-25 09:00+00:00", "Wed 2026-03-25 10:00 CET"),
        ("2026-03-25T08:00Z", "Wed 2026-03-25 09:00 CET"),
        ("2026-03-29 03:00", "Sun 2026-03-29 03:00 CEST"),
        ("11:31", "Tue 2026-03-24 11:31 CET"),
        ("11:30", "Wed 2026-03-25 11:30 CET"),
        ("0:05", "Wed 2026-03-25 00:05 CET"),
        ("mon 9:00", "Mon 2026-03-30 09:00 CEST"),
        ("Tuesday 12:00", "Tue 2026-03-24 12:00 CET"),
        (" tue  11:00 ", "Tue 2026-03-31 11:00 CEST"),
        ("2026-10-25 02:30+02:00", "Sun 2026-10-25 02:30 CEST"),
        ("2026-10-25 02:30+01:00", "Sun 2026-10-25 02:30 CET"),
    ],
)
def test_a_moment_is_read_and_said_again(text: str, read: str) -> None:
    assert said(parse_moment(text, NOW)) == read


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-03-24 11:30", "Tue 2026-03-24 11:30 CET has passed; it is now Tue 2026-03-24 11:30 CET"),
        ("2026-03-24", "has passed"),
        ("2027-12-01 09:00", "is more than a year away"),
        ("2026-03-29 02:30", "'2026-03-29 02:30' does not exist"),
        ("sun 2:30", "'sun 2:30' does not exist"),
        ("2026-10-25 02:30", "'2026-10-25 02:30' occurs twice"),
        ("2026-13-01 09:00", "is not a date and time"),
        ("25:00", "is not a date and time"),
        ("someday 9:00", "is not a date and time"),
        ("tomorrow", "is not a date and time"),
        ("9", "is not a date and time"),
        ("", "is not a date and time"),
        ("0001-01-01 00:00", ""),
        ("9999-12-31 23:59", ""),
    ],
)
def test_other_words_are_refused_and_say_why(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_moment(text, NOW)
    assert why in refused.value.message


def test_a_span_names_what_differs() -> None:
    begins = parse_moment("2026-03-25 09:00", NOW)
    assert span(begins, begins + 6 * HOUR) == "Wed 2026-03-25 09:00 to 15:00 CET"
    assert span(begins, begins + DAY) == "Wed 2026-03-25 09:00 to Thu 2026-03-26 09:00 CET"
    late = parse_moment("2026-03-29 01:00", NOW)
    assert span(late, late + 2 * HOUR) == "Sun 2026-03-29 01:00 CET to 04:00 CEST"
