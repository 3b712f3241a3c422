"""`tranche report` counts what ended shares used, and what running ones have used until now."""

from __future__ import annotations

import csv
import io
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine, needs_root, wait_until
from tranche.core.usage import DayUsage
from tranche.node.store import records
from tranche.node.store.ledger import Ledger

TODAY = int(time.time() // 86400)


def noted(machine: TestMachine, *used: DayUsage) -> None:
    machine.tranche("ps")
    with closing(Ledger(machine.ledger)) as ledger, ledger.write() as db:
        records.add_usage(db, used)


def test_a_report_adds_up_days_by_user_group_and_day(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB")
    noted(
        machine,
        DayUsage(TODAY, 0, 3600.0, 7200.0, 1),
        DayUsage(TODAY, 0, 1800.0, 3600.0, 2),
        DayUsage(TODAY, 4711, 9000.0, 9000.0, 1),
        DayUsage(TODAY - 29, 4711, 3600.0, 3600.0, 1),
        DayUsage(TODAY - 30, 4711, 3600.0, 3600.0, 1),
    )
    table = machine.tranche("report").stdout.splitlines()
    assert [line.split() for line in table] == [
        ["USER", "GPU-HOURS", "SHARE-HOURS", "SHARES"],
        ["4711", "3.5", "3.5", "2"],
        ["root", "1.5", "3.0", "3"],
    ]
    found = machine.json("report", "--days", "31", "--by", "group")
    assert [(each["name"], each["gpuHours"]) for each in found["rows"]] == [("", 4.5), ("root", 1.5)]
    day = datetime.fromtimestamp(TODAY * 86400, UTC).date()
    assert (found["from"], found["to"]) == (str(day - timedelta(days=30)), str(day))
    rows = list(csv.reader(io.StringIO(machine.tranche("report", "--days", "1", "--by", "day", "-o", "csv").stdout)))
    assert rows == [["day", "gpu_hours", "share_hours", "shares"], [str(day), "4.0", "5.5", "4"]]
    month = f"{day:%Y-%m}"
    assert machine.json("report", "--month", month)["from"] == f"{month}-01"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--month", "2026-13"), "'2026-13' is not a month"),
        (("--month", "october"), "'october' is not a month"),
        (("--month", "2026-10", "--days", "3"), "cannot be combined"),
        (("--days", "0"), "0 is not in the range"),
    ],
    ids=" ".join,
)
def test_a_wrong_span_is_refused(make_machine: MakeMachine, arguments: tuple[str, ...], message: str) -> None:
    assert message in make_machine("T4").tranche("report", *arguments, code=2).stderr


@needs_root
def test_half_a_gpu_counts_half_and_running_shares_count_until_now(two_a100: TestMachine) -> None:
    two_a100.hold("--mig-profile", "3g.20gb")
    # No more than the machine's uptime: a share counts until the machine's start if it began before it.
    earlier = min(7200.0, time.clock_gettime(time.CLOCK_BOOTTIME) / 2)
    with closing(Ledger(two_a100.ledger)) as ledger, ledger.write() as db:
        db.execute("UPDATE allocations SET created = created - ?", (earlier,))
    shares, gpus = (pytest.approx(earlier / each, abs=0.02) for each in (3600, 7200))
    (row,) = two_a100.json("report", "--days", "2")["rows"]
    assert (row["name"], row["gpuHours"], row["shareHours"], row["shares"]) == ("root", gpus, shares, 1)
    two_a100.end_commands()
    wait_until(lambda: not two_a100.json("ps")["allocations"])
    (row,) = two_a100.json("report", "--days", "2")["rows"]
    assert (row["gpuHours"], row["shareHours"], row["shares"]) == (gpus, shares, 1)


@needs_root
def test_a_share_of_before_the_machines_start_counts_until_then(two_a100: TestMachine) -> None:
    two_a100.hold("--gpus", "1")
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    with closing(Ledger(two_a100.ledger)) as ledger, ledger.write() as db:
        db.execute("UPDATE allocations SET created = ?", (time.time() - uptime - 7200,))
    two_a100.end_commands()
    wait_until(lambda: not two_a100.json("ps")["allocations"])
    (row,) = two_a100.json("report", "--days", "3660")["rows"]
    assert row["gpuHours"] == 2.0
