"""`tranche report`: how much GPU time users have used."""

from __future__ import annotations

import csv
import re
import sys
import time
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

import click

from tranche.cli.output import print_json, print_table
from tranche.cli.runtime import Settings, TrancheCommand, open_host, output_option
from tranche.core.errors import UsageError
from tranche.core.usage import DayUsage, with_running
from tranche.core.user_quota import GROUP
from tranche.node.store import records, register
from tranche.node.store.register import user_name

_EPOCH = date(1970, 1, 1)
_MONTH = re.compile(r"\d{4}-\d{2}", re.ASCII)
_HOUR_SECONDS = 3600.0


@click.command(cls=TrancheCommand)
@click.option(
    "--days", metavar="N", type=click.IntRange(1, 3660), help="Number of days to report, including today. Default: 30."
)
@click.option("--month", metavar="YYYY-MM", help="Month to report, instead of --days.")
@click.option(
    "--by",
    type=click.Choice(["user", "group", "day"]),
    default="user",
    show_default=True,
    help="Group rows by user, group or day.",
)
@output_option("table", "json", "csv")
@click.pass_obj
def command(settings: Settings, /, days: int | None, month: str | None, by: str, output: str) -> None:
    """Report users' GPU time.

    In GPU-HOURS, a slice or a part counts as its fraction of a GPU. SHARE-HOURS is the total time for which shares were
    held. SHARES is the number of shares, including running ones. Days are in UTC. A user's group is their primary
    group. The report does not include pods.

    \b
    $ tranche report
    $ tranche report --month 2026-10 --by group -o csv
    """
    if days is not None and month is not None:
        raise UsageError("--days and --month cannot be combined", hint="give only one of them")
    now = time.time()
    first, last = _month(month) if month is not None else _days(days or 30, now)
    with open_host(settings, reading=True) as host, host.ledger.read() as db:
        ended, held = records.usage(db, (first - _EPOCH).days), register.allocations(db)
    used = [each for each in with_running(ended, held, now) if first <= _date(each) <= last]
    rows = [
        (name, *_hours(of)) for name, of in sorted(_named(used, by).items(), key=lambda row: _place(row[0], row[1], by))
    ]
    if output == "json":
        names = ("name", "gpuHours", "shareHours", "shares")
        print_json(
            "UsageReport",
            **{"from": str(first), "to": str(last), "by": by},
            rows=[dict(zip(names, row, strict=True)) for row in rows],
        )
    elif output == "csv":
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow((by, "gpu_hours", "share_hours", "shares"))
        table.writerows(rows)
    else:
        print_table((by.upper(), "GPU-HOURS", "SHARE-HOURS", "SHARES"), rows)


def _days(count: int, now: float) -> tuple[date, date]:
    today = datetime.fromtimestamp(now, UTC).date()
    return today - timedelta(days=count - 1), today


def _month(text: str) -> tuple[date, date]:
    try:
        if _MONTH.fullmatch(text) is None:
            raise ValueError(text)
        first = date.fromisoformat(f"{text}-01")
    except ValueError as error:
        raise UsageError(f"'{text}' is not a month", hint="write it as YYYY-MM, for example 2026-10") from error
    return first, (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)


def _date(used: DayUsage) -> date:
    return _EPOCH + timedelta(days=used.day)


def _named(used: Iterable[DayUsage], by: str) -> dict[str, list[DayUsage]]:
    found: dict[str, list[DayUsage]] = {}
    names: dict[int, str] = {}
    for each in used:
        if by == "day":
            name = str(_date(each))
        else:
            name = names.setdefault(each.uid, user_name(each.uid) if by == "user" else _primary_group(each.uid))
        found.setdefault(name, []).append(each)
    return found


def _primary_group(uid: int) -> str:
    """The primary group of a user; "" if the machine no longer knows the user."""
    return next((group.removeprefix(GROUP) for group in register.groups_of(uid)), "")


def _hours(of: Iterable[DayUsage]) -> tuple[float, float, int]:
    several = tuple(of)
    gpu, share = sum(each.gpu_seconds for each in several), sum(each.share_seconds for each in several)
    return round(gpu / _HOUR_SECONDS, 2), round(share / _HOUR_SECONDS, 2), sum(each.shares for each in several)


def _place(name: str, of: Iterable[DayUsage], by: str) -> tuple[float, str]:
    """Days in order; users and groups by their use, most first."""
    return (0.0, name) if by == "day" else (-sum(each.gpu_seconds for each in of), name)
