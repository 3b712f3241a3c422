"""The ledger: what it refuses to open, what it keeps, and what it never grants twice."""

from __future__ import annotations

import os
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import wait_until
from tests.node.processes import Child, in_child
from tranche.core.allocation import Allocation, Grant, Phase, Slice, WholeGpu
from tranche.core.errors import (
    LedgerCorrupt,
    LedgerTooNew,
    LedgerUnavailable,
    PermissionDenied,
    TrancheError,
    WaitTimeout,
)
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.node.state.session import process_stopped
from tranche.node.store import chronicle, records, register
from tranche.node.store.ledger import Ledger
from tranche.node.store.schema import SCHEMA_VERSION

SMALL = parse_profile("1g.5gb")
NOBODY = 65534


def allocation(name: str, *grants: Grant) -> Allocation:
    return Allocation(name, Request(MigSlice(SMALL)), grants, Phase.PREPARING, created=1.0, command="true")


def slice_at(start: int, size: int = 1) -> Grant:
    return Slice("GPU-0", SMALL, Placement(start, size))


def contents(path: Path) -> bytes:
    return path.read_bytes()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter; those of tmp_path are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_a_new_ledger_is_empty_and_sound(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "deep" / "er" / "ledger.db")
    ledger.check()
    with ledger.read() as db:
        assert register.allocations(db) == ()
        assert db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    ledger.close()


def test_what_was_written_is_there_for_the_next_process(tmp_path: Path) -> None:
    def write() -> None:
        with Ledger(tmp_path / "ledger.db").write() as db:
            register.add_allocation(db, allocation("a", slice_at(0)))

    in_child(write)
    ledger = Ledger(tmp_path / "ledger.db")
    with ledger.read() as db:
        assert register.allocations(db) == (allocation("a", slice_at(0)),)
    ledger.close()


def test_many_processes_may_make_the_ledger_at_once(tmp_path: Path) -> None:
    def write(number: int) -> None:
        with Ledger(tmp_path / "ledger.db").write() as db:
            chronicle.released(db, 0.0, "", str(number))

    children = [Child(lambda number=number: write(number)) for number in range(12)]  # type: ignore[misc]
    for child in children:
        child.result()
    ledger = Ledger(tmp_path / "ledger.db")
    with ledger.read() as db:
        assert sorted(int(event.message) for event in chronicle.events(db)) == list(range(12))
    ledger.close()


def test_a_newer_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    before = contents(path)
    with pytest.raises(LedgerTooNew, match=f"format {SCHEMA_VERSION + 1}") as caught:
        Ledger(path)
    assert caught.value.hint
    assert contents(path) == before


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE recipes (name TEXT)")
    db.commit()
    db.close()
    before = contents(path)
    with pytest.raises(LedgerCorrupt, match="not a ledger"):
        Ledger(path)
    assert contents(path) == before


@pytest.mark.parametrize("junk", [b"this is no database\n" * 100, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(junk)
    with pytest.raises(LedgerCorrupt) as caught:
        Ledger(path)
    assert "move the file away" in caught.value.hint
    assert contents(path) == junk


def test_a_truncated_ledger_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    with ledger.write() as db:
        for number in range(500):
            chronicle.released(db, 0.0, "", f"{number} " * 20)
    ledger.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size // 2)

    def use() -> None:
        ledger = Ledger(path)
        try:
            ledger.check()
            with ledger.read() as db:
                chronicle.events(db)
        finally:
            ledger.close()

    with pytest.raises(LedgerCorrupt, match="damaged"):
        use()


@pytest.mark.parametrize(
    ("left", "logged", "read_only"),
    [(0, True, False), (1, True, False), (99, True, False), (0, True, True), (99, True, True), (0, False, False)],
)
def test_a_ledger_that_is_emptied_in_place_is_refused_in_seconds(
    tmp_path: Path, left: int, logged: bool, read_only: bool
) -> None:
    path = tmp_path / "ledger.db"
    theirs = Ledger(path)
    try:
        if not logged:
            with theirs.read() as db:
                db.execute("COMMIT")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        os.truncate(path, left)
        log = path.with_name("ledger.db-wal").read_bytes()

        def look() -> str:
            try:
                Ledger(path, read_only=read_only)
            except LedgerCorrupt as error:
                return f"{error} {error.hint}"
            return ""

        assert "emptied or truncated while other processes had it open" in in_child(look)
        assert path.with_name("ledger.db-wal").read_bytes() == log, "what others write there is theirs"
        with pytest.raises(LedgerCorrupt, match="emptied"), theirs.read():
            pass
        with pytest.raises(LedgerCorrupt, match="emptied"), theirs.write():
            pass
    finally:
        theirs.close()


def test_a_log_that_is_emptied_in_place_is_refused_by_everybody(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    theirs = Ledger(path)
    try:
        with theirs.write() as db:
            register.add_allocation(db, allocation("a", WholeGpu("GPU-0")))
        os.truncate(path.with_name("ledger.db-wal"), 0)

        def look() -> str:
            try:
                with Ledger(path).read() as db:
                    register.allocations(db)
            except LedgerCorrupt as error:
                return str(error)
            return ""

        def check() -> str:
            try:
                Ledger(path).check()
            except LedgerCorrupt as error:
                return str(error)
            return ""

        assert "its log was emptied" in in_child(look)
        assert "its log was emptied" in in_child(check)
        with pytest.raises(LedgerCorrupt, match="its log was emptied"), theirs.write():
            pass
    finally:
        theirs.close()


def test_a_stopped_writer_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger(path).close()

    def write_and_stop() -> None:
        with Ledger(path).write() as db:
            db.execute("INSERT INTO chores VALUES ('theirs')")
            os.kill(os.getpid(), signal.SIGSTOP)

    child = Child(write_and_stop)
    try:
        wait_until(lambda: process_stopped(child.pid))
        ledger = Ledger(path)
        with ledger.write() as db:
            assert db.execute("SELECT count(*) FROM chores WHERE name = 'theirs'").fetchone() == (1,)
        ledger.close()
    finally:
        child.end()


def test_who_waits_for_a_writer_is_told_who_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger(path).close()

    def write_for_ever() -> None:
        with Ledger(path).write():
            (tmp_path / "writing").touch()
            time.sleep(600)

    child = Child(write_for_ever)
    try:
        wait_until((tmp_path / "writing").exists)
        ledger = Ledger(path)
        told = rf"for 0.1 s: pid {child.pid} \("
        with pytest.raises(WaitTimeout, match=told) as caught, ledger.waiting(0.1), ledger.write():
            pass
        assert f"kill -9 {child.pid}" in caught.value.hint
        with ledger.read() as db:
            assert register.allocations(db) == ()
        ledger.close()
    finally:
        child.end()


def test_a_damaged_page_is_found_by_check(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    with ledger.write() as db:
        for number in range(200):
            chronicle.released(db, 0.0, "", f"{number} " * 20)
    ledger.close()
    page_size = 4096
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - page_size)
        file.write(b"\xa5" * page_size)
    ledger = Ledger(path)
    with pytest.raises(LedgerCorrupt):
        ledger.check()
    ledger.close()


def test_a_folder_in_the_place_of_the_ledger_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(LedgerUnavailable, match="is a folder"):
        Ledger(tmp_path / "ledger.db")


def test_a_file_in_the_place_of_the_state_folder_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(LedgerUnavailable, match="cannot create the state folder"):
        Ledger(tmp_path / "state" / "ledger.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody who may not write")
@pytest.mark.parametrize("exists", [False, True], ids=["new", "existing"])
def test_a_read_only_folder_is_refused_with_its_own_error(public_folder: Path, exists: bool) -> None:
    folder = public_folder / "state"
    folder.mkdir()
    if exists:
        Ledger(folder / "ledger.db").close()
    folder.chmod(0o555)
    before = sorted(path.name for path in folder.iterdir())

    def refused() -> tuple[str, int]:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            ledger = Ledger(folder / "ledger.db")
            with ledger.write() as db:
                chronicle.released(db, 0.0, "", "")
        except TrancheError as error:
            return type(error).__name__, error.exit_code
        return "nothing", 0

    assert in_child(refused) in {
        (LedgerUnavailable.__name__, LedgerUnavailable.exit_code),
        (PermissionDenied.__name__, PermissionDenied.exit_code),
    }
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")

    def write_and_fail() -> None:
        with ledger.write() as db:
            chronicle.released(db, 0.0, "", "gone")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    with ledger.read() as db:
        assert chronicle.events(db) == ()
    ledger.close()


def test_a_killed_writer_leaves_nothing(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.db").close()

    def die_writing() -> None:
        with Ledger(tmp_path / "ledger.db").write() as db:
            chronicle.released(db, 0.0, "", "gone")
            os.kill(os.getpid(), signal.SIGKILL)

    assert Child(die_writing).wait() == -signal.SIGKILL
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.check()
    with ledger.read() as db:
        assert chronicle.events(db) == ()
    ledger.close()


class Interrupted(BaseException):
    pass


def test_an_interrupt_while_another_process_writes_leaves_the_ledger_usable(tmp_path: Path) -> None:
    """A signal that arrives while a transaction waits for its turn is raised right after the turn came."""
    path = tmp_path / "ledger.db"
    Ledger(path).close()

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    def be_interrupted() -> str:
        ledger = Ledger(path)
        signal.signal(signal.SIGTERM, interrupt)
        (tmp_path / "ready").touch()
        try:
            with ledger.write() as db:
                chronicle.released(db, 0.0, "", "interrupted")
        except Interrupted:
            with ledger.write() as db:
                chronicle.released(db, 0.0, "", "cleaned up")
            return "cleaned up"
        return "not interrupted"

    def keep_it_busy() -> None:
        with Ledger(path).write() as db:
            chronicle.released(db, 0.0, "", "first")
            (tmp_path / "busy").touch()
            wait_until((tmp_path / "go").exists)

    busy = Child(keep_it_busy)
    wait_until((tmp_path / "busy").exists)
    child = Child(be_interrupted)
    wait_until((tmp_path / "ready").exists)
    time.sleep(0.05)  # by now it most likely waits for its turn; were it earlier, the test would only prove less
    child.kill(signal.SIGTERM)
    (tmp_path / "go").touch()
    busy.result()
    assert child.result() == "cleaned up"
    ledger = Ledger(path)
    with ledger.read() as db:
        assert [event.message for event in chronicle.events(db)] == ["first", "cleaned up"]
    ledger.close()


def test_the_database_refuses_to_grant_a_unit_twice(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    with ledger.write() as db:
        register.add_allocation(db, allocation("a", slice_at(2, 2)))
    for second in (slice_at(3), slice_at(0, 4), WholeGpu("GPU-0")):
        with pytest.raises(sqlite3.IntegrityError), ledger.write() as db:
            register.add_allocation(db, allocation("b", second))
    with ledger.write() as db:
        register.add_allocation(db, allocation("c", slice_at(0, 2), WholeGpu("GPU-1")))
    with pytest.raises(sqlite3.IntegrityError), ledger.write() as db:
        register.add_allocation(db, allocation("d", WholeGpu("GPU-1")))
    with ledger.read() as db:
        assert [each.id for each in register.allocations(db)] == ["a", "c"]
    ledger.close()


def test_a_removed_allocation_frees_its_units(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    with ledger.write() as db:
        register.add_allocation(db, allocation("a", WholeGpu("GPU-0")))
        assert register.remove_allocation(db, "a")
        assert not register.remove_allocation(db, "a")
        register.add_allocation(db, allocation("b", slice_at(7)))
    ledger.close()


def test_of_many_concurrent_grants_of_one_slice_one_wins(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.db").close()

    def take(name: str) -> bool:
        ledger = Ledger(tmp_path / "ledger.db")
        try:
            with ledger.write() as db:
                register.add_allocation(db, allocation(name, slice_at(0)))
        except sqlite3.IntegrityError:
            return False
        return True

    children = [Child(lambda name=f"a{number}": take(name)) for number in range(10)]  # type: ignore[misc]
    assert sorted(child.result() for child in children) == [False] * 9 + [True]


def test_transactions_of_threads_take_turns(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")

    def count_up() -> None:
        for _ in range(20):
            with ledger.write() as db:
                last = chronicle.events(db, last=1)
                chronicle.released(db, 0.0, "", str(int(last[0].message) + 1 if last else 1))

    threads = [threading.Thread(target=count_up) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with ledger.read() as db:
        assert chronicle.events(db, last=1)[0].message == "100"
    ledger.close()


def test_a_returning_waiter_gets_its_old_place_and_positions_are_never_used_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    request = Request(MigSlice(SMALL))
    with ledger.write() as db:
        for name in "abc":
            records.add_waiter(db, name, request, created=1.0, command=f"run {name}", pid=7, uid=0)
        first = records.waiters(db)[0]
        records.remove_waiter(db, "a")
        records.remove_waiter(db, "c")
        records.add_waiter(db, "d", request, created=2.0, command="run d", pid=8, uid=0)
        records.restore_waiter(db, first)
        assert [waiter.id for waiter in records.waiters(db)] == ["a", "b", "d"]
        assert records.waiters(db)[0] == first
        assert records.waiters(db)[-1].position == 4
    ledger.close()
