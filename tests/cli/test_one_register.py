"""A machine has one register: who may not write it may read it, and nobody has a second one."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.machines import TestMachine, needs_root
from tests.node.processes import Child
from tests.support.in_process import NOBODY
from tranche.core.errors import LedgerTooNew, PermissionDenied
from tranche.node.state.register_place import POINTER, register_folder, settle_register
from tranche.node.store.ledger import Ledger
from tranche.node.store.ledger_copy import copied

SLICE = ("--mig-profile", "3g.20gb")


def files(machine: TestMachine) -> list[str]:
    return sorted(str(path) for path in machine.folder.rglob("*"))


@needs_root
@pytest.mark.parametrize("writer", [True, False], ids=["a writer is there", "none is"])
def test_everybody_may_read_the_register(readable_a100: TestMachine, writer: bool) -> None:
    work = readable_a100.hold(*SLICE)
    (allocation,) = readable_a100.json("ps")["allocations"]
    if not writer:
        work.process.kill()
        work.process.wait()
    before = files(readable_a100), readable_a100.changes()
    for arguments in (("ps",), ("top", "--once"), ("gpus", "-o", "json"), ("events",)):
        done = readable_a100.tranche(*arguments, as_nobody=True)
        assert allocation["id"] in done.stdout, arguments
        assert done.stderr == ""
    waits = readable_a100.tranche("explain", "--mig-profile", "7g.40gb", as_nobody=True)
    assert allocation["id"] in waits.stdout
    assert (files(readable_a100), readable_a100.changes()) == before
    os.kill(work.pid, signal.SIGKILL)


@needs_root
def test_another_folder_is_no_way_around_the_register(readable_a100: TestMachine) -> None:
    readable_a100.hold("--gpus", "1")
    own = readable_a100.folder / "own"
    own.mkdir()
    shutil.chown(own, NOBODY, NOBODY)
    done = readable_a100.tranche("--state-dir", str(own), "run", "--gpus", "1", "--", "true", as_nobody=True, code=22)
    assert f"register is in {readable_a100.state_dir}" in done.stderr
    assert "choose another" not in done.stderr
    assert list(own.iterdir()) == []
    seen = readable_a100.tranche("--state-dir", str(own), "ps", as_nobody=True)
    assert "--gpus 1" in seen.stdout
    assert f"register is in {readable_a100.state_dir}" in seen.stderr


@needs_root
def test_who_is_first_and_may_not_say_where_the_register_is_gets_nothing(readable_a100: TestMachine) -> None:
    own = readable_a100.folder / "own"
    own.mkdir()
    shutil.chown(own, NOBODY, NOBODY)
    for folder in (str(own), str(readable_a100.machine.directory / "tranche")):
        done = readable_a100.tranche("--state-dir", folder, "run", "--gpus", "1", "--", "true", as_nobody=True, code=22)
        assert "sudo" in done.stderr
    assert list(own.iterdir()) == []


def test_the_register_is_moved_by_moving_its_folder(tmp_path: Path) -> None:
    home, there, elsewhere = tmp_path / "home", tmp_path / "there", tmp_path / "elsewhere"
    assert register_folder(home) is None
    settle_register(home, home)
    Ledger(home / "ledger.db").close()
    assert register_folder(home) == home
    with pytest.raises(PermissionDenied, match=str(home)):
        settle_register(home, there)
    shutil.move(home, there)
    settle_register(home, there)
    assert register_folder(home) == there
    assert (home / POINTER).read_text() == f"{there}\n"
    with pytest.raises(PermissionDenied, match=str(there)):
        settle_register(home, elsewhere)
    with pytest.raises(PermissionDenied, match=str(there)):
        settle_register(home, home)
    assert not elsewhere.exists()
    shutil.rmtree(there)
    settle_register(home, elsewhere)
    assert register_folder(home) == elsewhere


def test_a_copy_is_one_moment_of_a_ledger_that_is_written_all_the_time(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger(path).close()

    def write() -> None:
        db = sqlite3.connect(path, isolation_level=None)
        # The database itself is written every 40 ms or so: who copies it needs 20 ms without that.
        db.execute("PRAGMA wal_autocheckpoint = 60")
        for number in range(100_000):
            db.execute("BEGIN IMMEDIATE")
            for name in ("a", "b"):
                row = (ord(name), name, number)
                db.execute("INSERT OR REPLACE INTO waiters VALUES (?, ?, '{}', ?, '', 0, 0)", row)
            db.execute("COMMIT")
            time.sleep(0.002)

    child = Child(write)
    try:
        seen: set[float] = set()
        while len(seen) < 20:
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                child.result()  # raises why the writer has ended
            db = copied(path)
            numbers = {row[0] for row in db.execute("SELECT created FROM waiters")}
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            db.close()
            assert len(numbers) <= 1
            seen |= numbers
    finally:
        child.end()


def test_a_reader_makes_nothing_and_writes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "none" / "ledger.db", read_only=True)
    with ledger.read() as db:
        assert db.execute("SELECT count(*) FROM allocations").fetchone() == (0,)
    with pytest.raises(PermissionDenied), ledger.write():
        pass
    ledger.close()
    assert os.listdir(tmp_path) == []


def test_a_reader_refuses_a_newer_format(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(LedgerTooNew):
        Ledger(path, read_only=True)


@needs_root
def test_a_plan_is_shown_to_who_may_not_change_anything(readable_a100: TestMachine) -> None:
    readable_a100.hold(*SLICE)
    before = files(readable_a100), readable_a100.changes()
    for arguments in (("layout", "plan"), ("layout", "apply", "--dry-run")):
        done = readable_a100.tranche(*arguments, "--selected-config", "all-3g.20gb", as_nobody=True)
        assert "create 3g.20gb" in done.stdout
        assert "hint" not in done.stderr
    assert (files(readable_a100), readable_a100.changes()) == before
