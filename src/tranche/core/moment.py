"""Moments in this machine's zone, as people write and read them."""

from __future__ import annotations

import datetime
import re

from tranche.core.errors import UsageError

_CLOCK = re.compile(r"(?:([a-z]{3,9}) )?(\d{1,2}):(\d{2})", re.ASCII | re.IGNORECASE)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_FARTHEST_SECONDS = 366 * 86_400.0
_HINT = "write a date and time such as '2026-12-01 09:00', a time such as 18:30, or a day such as 'mon 9:00'"


def said(seconds: float) -> str:
    """Seconds since the epoch with day and zone: `Tue 2026-12-01 09:00 CET`."""
    moment = datetime.datetime.fromtimestamp(seconds).astimezone()
    return f"{moment:%a %Y-%m-%d} {_clock(moment)} {moment:%Z}"


def span(begins: float, ends: float) -> str:
    """From one moment to another: `Tue 2026-12-01 09:00 to 15:00 CET`."""
    first, last = (datetime.datetime.fromtimestamp(each).astimezone() for each in (begins, ends))
    zone = "" if first.tzname() == last.tzname() else f" {first:%Z}"
    day = "" if first.date() == last.date() else f"{last:%a %Y-%m-%d} "
    return f"{first:%a %Y-%m-%d} {_clock(first)}{zone} to {day}{_clock(last)} {last:%Z}"


def _clock(moment: datetime.datetime) -> str:
    return f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"


def parse_moment(text: str, now: float) -> float:
    """The moment in seconds since the epoch: a date and time, or the next such time of a day or of a weekday.

    Raises UsageError if it is none, has passed, is more than a year away, or if the clock never shows it or shows it twice.
    """
    words = " ".join(text.split())
    try:
        found = _next(words, now) if _CLOCK.fullmatch(words) else _moment(datetime.datetime.fromisoformat(words), text)
        if not now < found <= now + _FARTHEST_SECONDS:
            what = "has passed" if found <= now else "is more than a year away"
            raise UsageError(f"{said(found)} {what}; it is now {said(now)}", hint=_HINT)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"'{text}' is not a date and time", hint=_HINT) from error
    return found


def _next(words: str, now: float) -> float:
    """The next moment at which a clock shows that time, on that weekday if one is given; ValueError if none does."""
    match = _CLOCK.fullmatch(words)
    assert match is not None
    day, hour, minute = match.groups()
    at, today = datetime.time(int(hour), int(minute)), datetime.datetime.fromtimestamp(now).astimezone().date()
    for days in range(8):
        date = today + datetime.timedelta(days)
        if day is None or _DAYS[date.weekday()].startswith(day.lower()):
            found = datetime.datetime.combine(date, at)
            if (moment := _moment(found, words)) > now:
                return moment
    raise ValueError(words)


def _moment(found: datetime.datetime, text: str) -> float:
    """Seconds since the epoch; a moment without a zone is in this machine's."""
    first, second = (found.replace(fold=fold).timestamp() for fold in (0, 1))
    shown = datetime.datetime.fromtimestamp(first).astimezone().replace(tzinfo=None, fold=0)
    if found.tzinfo is None and shown != found.replace(fold=0):
        raise UsageError(
            f"'{text}' does not exist, because the clock is set forward at that time", hint="give another time"
        )
    if first != second:
        raise UsageError(
            f"'{text}' occurs twice, because the clocks go back at that time",
            hint=f"add the offset from UTC, as in '{found:%Y-%m-%d %H:%M}+01:00'",
        )
    return first
