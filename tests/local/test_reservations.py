"""Reservations with the service: two users, a start that comes by itself, a restart, and one that is given up."""

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import UTC, datetime

from tests.local.test_service import HALF, OTHER, SharedMachine, shared
from tests.machines import needs_root, wait_until
from tests.support.in_process import NOBODY
from tranche.core.errors import NoRoom, PermissionDenied
from tranche.node.store.ledger import Ledger
from tranche.node.store.register import user_name

pytestmark = needs_root

__all__ = ["shared"]
NOBODY_NAME = user_name(NOBODY)
NOW = ("run", "--no-wait", *HALF, "--", "true")


def reserve(shared: SharedMachine, after: float, *options: str) -> None:
    """Reserve the GPU for `NOBODY` from so many seconds from now on."""
    begins = datetime.fromtimestamp(time.time() + after, tz=UTC).isoformat(sep=" ")
    users = options or ("--user", str(NOBODY))
    shared.machine.tranche("reserve", "add", "--gpus", "1", "--from", begins, "--for", "1h", *users)


def move(shared: SharedMachine, ago: float) -> None:
    """Let the reservation have begun so long ago."""
    with closing(Ledger(shared.machine.ledger)) as ledger, ledger.write() as db:
        db.execute("UPDATE reservations SET begins = ?", (time.time() - ago,))


def test_a_reservation_is_its_users_and_others_start_only_before_it(shared: SharedMachine) -> None:
    reserve(shared, 7200)
    code, _, err = shared.run(*NOW, uid=OTHER)
    assert (code, f"reserved for {NOBODY_NAME} from " in err) == (NoRoom.exit_code, True), err
    assert shared.run("run", "--no-wait", "--time", "1h", *HALF, "--", "true", uid=OTHER)[0] == 0
    assert shared.run(*NOW)[0] == NoRoom.exit_code, "before it, its user is like all others"
    code, out, _ = shared.run("explain", *HALF, uid=OTHER)
    assert (code, "set a time limit of at most 1h5" in out, "Reserved" in out) == (0, True, True), out
    move(shared, 1)
    code, out, _ = shared.run("reserve", "list", "-o", "json", uid=OTHER)
    assert (code, [each["for"] for each in json.loads(out)["reservations"]]) == (0, [NOBODY_NAME])
    assert shared.run("reserve", "remove", "x", uid=OTHER)[0] == PermissionDenied.exit_code
    code, _, err = shared.run("run", "--no-wait", "--time", "1s", *HALF, "--", "true", uid=OTHER)
    assert (code, "can start before" in err) == (NoRoom.exit_code, False), err
    assert shared.machine.tranche(*NOW, code=NoRoom.exit_code).stderr.count("reserved for") == 1, "root obeys it"
    assert shared.run(*NOW)[0] == 0
    move(shared, 901)
    assert shared.run(*NOW, uid=OTHER)[0] == NoRoom.exit_code, "it has been used, so it lasts"


def test_its_user_starts_by_itself_before_those_who_wait_longer(shared: SharedMachine) -> None:
    reserve(shared, 4)
    other = shared.start("run", *HALF, "--", "true", uid=OTHER)
    wait_until(lambda: len(shared.waiters()) == 1, other)
    mine = shared.start("run", "-q", *HALF, "--", "true")
    assert mine.wait(60) == 0
    assert other.poll() is None
    shared.machine.tranche("reserve", "remove", str(shared.machine.json("reserve", "list")["reservations"][0]["id"]))
    assert other.wait(60) == 0


def test_a_restarted_service_gives_up_what_nobody_uses_and_serves_who_waits(shared: SharedMachine) -> None:
    reserve(shared, 3600)
    other = shared.start("run", "-q", *HALF, "--", "true", uid=OTHER)
    wait_until(lambda: len(shared.waiters()) == 1, other)
    assert shared.service is not None
    shared.service.kill()
    shared.service.wait()
    move(shared, 901)
    shared.serve()
    assert other.wait(60) == 0
    ended = [each for each in shared.machine.json("events")["events"] if each["type"] == "ReservationEnded"]
    assert [each["data"]["why"] for each in ended] == ["none of its users has used it within 15m"]


def test_a_service_ends_a_reservation_without_any_request(shared: SharedMachine) -> None:
    reserve(shared, 3600)
    move(shared, 901)

    def ended() -> bool:
        with closing(Ledger(shared.machine.ledger)) as ledger, ledger.read() as db:
            return not db.execute("SELECT * FROM reservations").fetchall()

    wait_until(ended, shared.service)


def test_users_do_not_extend_beyond_a_reservation(shared: SharedMachine) -> None:
    process = shared.start("run", "-q", *HALF, "--time", "10m", "--", "sh", "-c", "echo $$; exec sleep 600", uid=OTHER)
    assert process.stdout is not None
    shared.held.append(int(process.stdout.readline()))
    reserve(shared, 3600)
    id = str(shared.shares()[0]["id"])
    assert shared.run("extend", id, "10m", uid=OTHER)[0] == 0
    code, _, err = shared.run("extend", id, "1h", uid=OTHER)
    assert (code, "GPU 0 is reserved for" in err) == (NoRoom.exit_code, True), err
    assert "the time limit is now 1h20m" in shared.machine.tranche("extend", id, "1h").stderr
