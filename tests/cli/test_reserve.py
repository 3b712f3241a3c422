"""`tranche reserve`: what it understood, which GPUs it took, who is in the way, and who is refused."""

from __future__ import annotations

import os
import time
from contextlib import closing
from datetime import datetime, timedelta

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine, wait_until
from tranche.cli.runtime import user_name
from tranche.core.errors import NoRoom, UsageError
from tranche.core.moment import span
from tranche.node.locks.locks import FileLock
from tranche.node.state.session import StateFolder
from tranche.node.store import records
from tranche.node.store.ledger import Ledger

HOUR = 3600.0
START = (datetime.now().astimezone().replace(tzinfo=None) + timedelta(days=2)).replace(
    hour=9, minute=0, second=0, microsecond=0
)
WHEN = span(START.timestamp(), START.timestamp() + 6 * HOUR)
ME = str(os.getuid())
ADD = ("reserve", "add", "--from", f"{START:%Y-%m-%d %H:%M}", "--for", "6h")


def reservations(machine: TestMachine) -> list[dict[str, object]]:
    found: list[dict[str, object]] = machine.json("reserve", "list")["reservations"]
    return found


def begin_ago(machine: TestMachine, seconds: float) -> None:
    """Let all reservations have begun so long ago."""
    with closing(Ledger(machine.ledger)) as ledger, ledger.write() as db:
        db.execute("UPDATE reservations SET begins = ?", (time.time() - seconds,))


def test_a_reservation_is_told_listed_shown_and_removed(two_a100: TestMachine) -> None:
    said = two_a100.tranche(*ADD, "--gpus", "1", "--user", ME).stderr
    (made,) = reservations(two_a100)
    words = f"reserved for {user_name()} from {WHEN}"
    assert said.startswith(f"reservation {made['id']}: GPU 0 {words}; it starts in ")
    first, second = two_a100.json("gpus")["gpus"]
    assert made["gpuUUIDs"] == [first["uuid"]]
    assert (made["for"], made["begun"], made["user"]) == (user_name(), False, user_name())
    assert (first["reserved"], second["reserved"]) == (words, None)
    for command in (("gpus",), ("gpus", "-o", "svg")):
        assert words in two_a100.tranche(*command).stdout
    listed = two_a100.tranche("reserve", "list").stdout.splitlines()
    assert (WHEN in listed[1], len(listed)) == (True, 2)
    assert two_a100.tranche("reserve", "remove", str(made["id"])[:4]).stderr == f"reservation {made['id']} removed\n"
    assert reservations(two_a100) == []
    begun, ended = two_a100.json("events")["events"][-2:]
    assert (begun["type"], begun["message"]) == (
        "Reserved",
        f"GPU 0 {words} by {user_name()}: reservation {made['id']}",
    )
    assert (ended["type"], ended["cause"]) == ("ReservationEnded", begun["position"])
    assert ended["data"] == {"reservationId": made["id"], "why": f"{user_name()} removed it"}
    assert two_a100.tranche("reserve", "remove", str(made["id"]), code=UsageError.exit_code).stderr.startswith(
        f"error: there is no reservation {made['id']}"
    )


def test_a_command_starts_beside_a_reservation_or_before_it_and_is_told_why_not(two_a100: TestMachine) -> None:
    two_a100.tranche(*ADD, "--gpu", "1", "--user", ME)
    two_a100.tranche(*ADD, "--gpus", "1")
    refused = two_a100.tranche("run", "--no-wait", "--gpus", "1", "--", "true", code=NoRoom.exit_code).stderr
    assert f"GPU 0: reserved for maintenance from {WHEN}; with --time " in refused
    assert f"GPU 1: reserved for {user_name()} from {WHEN}" in refused
    (limit, *_) = two_a100.json("explain", "--gpus", "2")["remedies"]
    assert (limit["kind"], limit["message"].startswith("set a time limit of at most ")) == ("TimeLimit", True)
    two_a100.tranche("run", "--no-wait", "--gpus", "2", "--time", "1h", "--", "true")
    two_a100.tranche(
        "run", "--no-wait", "--mig-profile", "1g.5gb", "--time", "90d", "--", "true", code=NoRoom.exit_code
    )
    reasons = {each["obstacle"]["reason"] for each in two_a100.json("explain", "--gpus", "2")["gpus"]}
    assert reasons == {"Reserved"}
    begin_ago(two_a100, 1.0)
    two_a100.tranche("run", "--no-wait", "--gpus", "1", "--", "true")
    two_a100.tranche("run", "--no-wait", "--gpus", "2", "--time", "1s", "--", "true", code=NoRoom.exit_code)


def test_who_is_in_the_way_is_named_and_goes_on(two_a100: TestMachine) -> None:
    two_a100.hold("--gpus", "1")
    two_a100.hold("--gpus", "1", "--time", "90d")
    said = two_a100.tranche(*ADD, "--gpus", "2").stderr
    assert " on GPU 0 has no time limit" in said
    assert "on GPU 1 may last until " in said
    assert [each["phase"] for each in two_a100.running()] == ["active", "active"]
    two_a100.tranche("reserve", "remove", str(reservations(two_a100)[0]["id"]))
    assert "time limit" not in two_a100.tranche(*ADD, "--gpus", "2", "--user", ME).stderr, "they are its user's"


def test_reservations_do_not_overlap(two_a100: TestMachine) -> None:
    two_a100.tranche(*ADD, "--gpus", "1")
    two_a100.tranche(*ADD, "--gpus", "1")
    said = two_a100.tranche(*ADD, "--gpu", "0", code=NoRoom.exit_code).stderr
    assert f"only 0 GPUs can be reserved from {WHEN}: GPU 0 is already reserved for maintenance" in said
    assert len(reservations(two_a100)) == 2


def test_a_reservation_that_nobody_uses_is_given_up_and_one_that_is_used_is_not(two_a100: TestMachine) -> None:
    two_a100.tranche(*ADD, "--gpu", "0", "--user", ME)
    two_a100.tranche(*ADD, "--gpu", "1", "--user", "65534")
    begin_ago(two_a100, 1.0)
    two_a100.tranche("run", "--gpus", "1", "--", "true")
    begin_ago(two_a100, 901.0)
    assert [each["gpuUUIDs"] for each in reservations(two_a100)] == [[two_a100.json("gpus")["gpus"][0]["uuid"]]]
    two_a100.tranche("run", "--no-wait", "--gpus", "2", "--", "true")
    (ended,) = [each for each in two_a100.json("events")["events"] if each["type"] == "ReservationEnded"]
    assert ended["message"].endswith("has ended: none of its users has used it within 15m")
    with closing(Ledger(two_a100.ledger)) as ledger, ledger.write() as db:
        assert [each.used for each in records.reservations(db)] == [True]
        db.execute("UPDATE reservations SET ends = ?", (time.time() - 0.001,))
    assert reservations(two_a100) == []
    two_a100.tranche("run", "--gpus", "1", "--", "true")
    assert two_a100.json("events")["events"][-1]["type"] != "ReservationEnded"
    with closing(Ledger(two_a100.ledger)) as ledger, ledger.read() as db:
        assert records.reservations(db) == ()


def test_a_waiting_command_starts_when_the_reservation_is_removed(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB")
    machine.tranche(*ADD, "--gpus", "1")
    waits = machine.start("run", "--gpus", "1", "--", "true")
    wait_until(lambda: len(machine.json("ps")["waiters"]) == 1, waits)
    assert "reserved for maintenance" in machine.json("ps")["waiters"][0]["why"]
    machine.tranche("reserve", "remove", str(reservations(machine)[0]["id"]))
    assert waits.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--from", "2020-01-01 09:00", "--for", "1h", "--gpus", "1"), "has passed; it is now"),
        (("--from", "noon", "--for", "1h", "--gpus", "1"), "is not a date and time"),
        (("--from", "9:00", "--for", "0s", "--gpus", "1"), "is shorter than a second"),
        (("--from", "9:00", "--for", "1h"), "give either --gpus or --gpu"),
        (("--from", "9:00", "--for", "1h", "--gpus", "1", "--gpu", "0"), "give either --gpus or --gpu"),
        (("--from", "9:00", "--for", "1h", "--gpus", "1", "--user", "nobody-here"), "has no user 'nobody-here'"),
        (("--from", "9:00", "--for", "1h", "--gpus", "1", "--group", "none-here"), "has no group 'none-here'"),
    ],
)
def test_wrong_options_reserve_nothing(two_a100: TestMachine, options: tuple[str, ...], why: str) -> None:
    assert why in two_a100.tranche("reserve", "add", *options, code=UsageError.exit_code).stderr
    assert reservations(two_a100) == []


def test_an_agents_machine_has_no_reservations(two_a100: TestMachine) -> None:
    two_a100.tranche("gpus")
    lock = FileLock(StateFolder(two_a100.state_dir).agent_lock)
    try:
        refused = two_a100.tranche(*ADD, "--gpus", "1", code=UsageError.exit_code).stderr
    finally:
        lock.release()
    assert "pods ignore reservations" in refused


def test_the_zone_of_the_machine_is_said(two_a100: TestMachine) -> None:
    told = two_a100.tranche(*ADD, "--gpus", "1", TZ="LAB-5", LC_ALL="C").stderr
    assert f"from {START:%a %Y-%m-%d} 09:00 to 15:00 LAB;" in told
    assert reservations(two_a100)[0]["begins"] == f"{START:%Y-%m-%d}T04:00:00.000Z"
