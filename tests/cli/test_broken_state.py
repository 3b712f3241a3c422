"""State folders that are broken in some way: where `run` fails, `doctor` fails first, names what is wrong, and leaves it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.machines import TRANCHE, TestMachine, machine_in, needs_root, wait_until
from tests.support.in_process import NOBODY
from tests.support.length import some_of
from tranche.node.state.session import process_start_time

Break = Callable[[TestMachine], None]
RUN = ("run", "--mig-profile", "1g.6gb", "-q", "--", "true")


def replace(path: Path, by: str) -> None:
    """Put a file, a folder, a dangling link, a link to itself, or nothing that can be opened, in the place of what is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    match by:
        case "file":
            path.write_text("a file")
        case "folder":
            path.mkdir()
        case "dangling":
            path.symlink_to(path.parent / "no" / "such" / "place")
        case "loop":
            path.symlink_to(path.name)
        case "pipe":
            os.mkfifo(path)
        case _:
            pass


def put(by: str, *parts: str) -> Break:
    return lambda machine: replace(machine.state_dir.joinpath(*parts), by)


def sql(*statements: str) -> Break:
    def change(machine: TestMachine) -> None:
        db = sqlite3.connect(machine.ledger)
        for statement in statements:
            db.execute(statement)
        db.commit()
        db.close()

    return change


def content(make: Callable[[bytes], bytes], name: str = "ledger.db") -> Break:
    def change(machine: TestMachine) -> None:
        path = machine.state_dir / name
        path.write_bytes(make(path.read_bytes() if path.exists() else b""))

    return change


def both(first: Break, second: Break) -> Break:
    def change(machine: TestMachine) -> None:
        first(machine)
        second(machine)

    return change


def move_away(machine: TestMachine) -> None:
    machine.state_dir.rename(machine.folder / "elsewhere")
    machine.state_dir.symlink_to(machine.folder / "elsewhere")


BROKEN: dict[str, Break] = {
    **{f"the folder is a {by}": put(by) for by in ("file", "dangling", "loop", "pipe")},
    **{f"the ledger is a {by}": put(by, "ledger.db") for by in ("folder", "dangling", "loop", "pipe")},
    **{f"locks is a {by}": put(by, "locks") for by in ("file", "dangling", "loop")},
    **{
        f"{name} is a {by}": put(by, "locks", name)
        for name in ("gpus", "sessions", "allocations", "waiters")
        for by in ("file", "dangling")
    },
    **{f"the decision lock is a {by}": put(by, "locks", "decision") for by in ("folder", "dangling", "loop")},
    "the write-ahead log is a folder": put("folder", "ledger.db-wal"),
    "the log's index is a folder": put("folder", "ledger.db-shm"),
    "the lock of the ledger's making is a folder": both(put("", "ledger.db"), put("folder", "ledger.db.creating")),
    "the ledger is garbage": content(lambda data: b"no database " * 1000),
    "the ledger is truncated": content(lambda data: data[: len(data) // 2]),
    "the ledger's pages are torn": content(lambda data: data[:4096] + b"\xa5" * (len(data) - 4096)),
    "the ledger is another database": both(put("", "ledger.db"), sql("CREATE TABLE recipes (name TEXT)")),
    "the ledger is newer": sql("PRAGMA user_version = 99"),
    "the ledger lacks a table": sql("DROP TABLE waiters"),
    "the ledger lacks a column": sql("ALTER TABLE waiters DROP COLUMN pid"),
}
SOUND: dict[str, Break] = {
    "as it is": lambda machine: None,
    "there is none yet": lambda machine: shutil.rmtree(machine.state_dir),
    "the ledger is empty": content(lambda data: b""),
    "the write-ahead log is garbage": content(lambda data: b"garbage" * 100, "ledger.db-wal"),
    "the locks are gone": lambda machine: shutil.rmtree(machine.state_dir / "locks"),
    "the folder is a link": move_away,
    "a pipe is among the sessions": put("pipe", "locks", "sessions", "0"),
    "a folder is among the waiters": put("folder", "locks", "waiters", "0"),
    "locks of dead processes are left": content(lambda data: b"", "locks/waiters/00000000"),
}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[TestMachine]:
    with machine_in(tmp_path, "A30-24GB") as made:
        made.tranche("run", "--mig-profile", "2g.12gb", "-q", "--", "true")
        yield made


def listing(machine: TestMachine) -> list[tuple[str, int]]:
    """Names and kinds of all that is in the state folder, but for the log that SQLite makes and removes as it likes."""
    paths = sorted([machine.state_dir, *machine.state_dir.rglob("*")])
    kept = [path for path in paths if path.name not in ("ledger.db-wal", "ledger.db-shm")]
    return [(str(path), path.lstat().st_mode) for path in kept if os.path.lexists(path)]


def fails(machine: TestMachine, *arguments: str, within: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr; `within` is a shell line that comes first, in a mount namespace of its own."""
    if not within:
        told = machine.tranche(*arguments, code=None)
        return told.returncode, told.stdout, told.stderr
    command = ["unshare", "-m", "sh", "-c", f'{within} && exec "$@"', "sh", *TRANCHE, *arguments]
    done = subprocess.run(
        command,
        env=machine.environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=200,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def check(machine: TestMachine, within: str = "") -> None:
    """Doctor fails with a finding that has a hint, and so does run, with an error of its own code."""
    before = machine.changes(), listing(machine)
    code, out, _ = fails(machine, "doctor", "-o", "json", within=within)
    wrong = [each for each in json.loads(out)["findings"] if each["status"] == "fail"]
    assert code == 1
    assert wrong
    assert {each["check"] for each in wrong} <= {"state-folder", "ledger"}
    assert any(str(machine.state_dir) in each["message"] for each in wrong)
    assert all(each["hint"] for each in wrong), wrong
    assert (machine.changes(), listing(machine)) == before
    code, _, error = fails(machine, *RUN, within=within)
    assert code in (22, 60, 61, 62), error
    assert machine.changes() == before[0]


@pytest.mark.parametrize("how", some_of([*list(BROKEN)[::3], *list(BROKEN)[1::3], *list(BROKEN)[2::3]], 11))
def test_doctor_fails_where_run_does(machine: TestMachine, how: str) -> None:
    BROKEN[how](machine)
    check(machine)


@pytest.mark.parametrize("how", SOUND)
def test_doctor_passes_where_run_does(machine: TestMachine, how: str) -> None:
    SOUND[how](machine)
    before = machine.changes(), listing(machine) if machine.state_dir.exists() else []
    assert machine.json("doctor")["healthy"]
    assert (machine.changes(), listing(machine) if machine.state_dir.exists() else []) == before
    machine.tranche(*RUN)


@needs_root
@pytest.mark.parametrize(
    "mount",
    [
        "mount -t tmpfs -o ro tmpfs {state}",
        "mount -t tmpfs -o size=64k tmpfs {state}",
        "mount -t tmpfs -o nr_inodes=4 tmpfs {state}",
        "mount --bind {state} {state} && mount -o remount,bind,ro {state}",
        (
            "mount -t tmpfs -o size=400k tmpfs /mnt && cp -r {state}/. /mnt && mount --bind /mnt {state} "
            "&& ! cat /dev/zero > /mnt/fill"
        ),
    ],
    ids=["read-only", "small", "without inodes", "an existing ledger read-only", "an existing ledger full"],
)
def test_doctor_fails_on_file_systems_on_which_run_does(machine: TestMachine, mount: str) -> None:
    check(machine, within=mount.format(state=machine.state_dir) + " 2>/dev/null")


@pytest.mark.parametrize("by", ["file", "pipe", "loop"])
def test_doctor_finds_that_the_machines_own_place_is_no_folder(machine: TestMachine, by: str) -> None:
    home = machine.machine.directory / "tranche"
    replace(home, by)
    code, out, _ = fails(machine, "doctor", "-o", "json")
    (wrong,) = [each for each in json.loads(out)["findings"] if each["status"] == "fail"]
    assert code == 1
    assert wrong["check"] == "state-folder"
    assert str(home) in wrong["message"]
    assert wrong["hint"]
    assert fails(machine, "ps")[0] == 60


@needs_root
@pytest.mark.parametrize("files", some_of([4, 9, 15, 2, 6, 8, 11, 13], 3))
def test_wherever_a_file_system_takes_no_more_files_it_is_said(machine: TestMachine, files: int) -> None:
    within = f"mount -t tmpfs -o nr_inodes={files} tmpfs {machine.state_dir}"
    code, _, error = fails(machine, "run", "--mig-profile", "1g.6gb", "-q", "--no-wait", "--", "true", within=within)
    assert code == 60
    assert "hint: free up space o" in error


@needs_root
def test_what_cannot_be_removed_is_left_over_and_does_no_harm(machine: TestMachine) -> None:
    work, waiter = machine.hold("--gpus", "1"), machine.wait_in_queue("--gpus", "1")
    folders = [machine.state_dir / "locks" / name for name in ("waiters", "allocations", "sessions")]
    if subprocess.run(["chattr", "+i", *folders], capture_output=True, check=False).returncode != 0:
        pytest.skip("this file system has no immutable files")
    try:
        for process in (work.process, waiter):
            process.kill()
            process.wait()
        os.kill(work.pid, signal.SIGKILL)
        wait_until(lambda: process_start_time(work.pid) == 0)
        listed = machine.json("ps")
        assert (listed["allocations"], listed["waiters"]) == ([], [])
        said = machine.tranche(*RUN, code=22).stderr
        assert "lsattr" in said
        assert "sudo" not in said
    finally:
        subprocess.run(["chattr", "-i", *folders], check=True)
    machine.tranche(*RUN)


@needs_root
@pytest.mark.parametrize("part", ["", "ledger.db", "ledger.db-wal", "locks/waiters"])
def test_doctor_fails_where_something_is_immutable(machine: TestMachine, part: str) -> None:
    path = machine.state_dir / part
    path.touch()
    if subprocess.run(["chattr", "+i", path], capture_output=True, check=False).returncode != 0:
        pytest.skip("this file system has no immutable files")
    try:
        check(machine)
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


@needs_root
@pytest.mark.parametrize(
    "part", some_of(["", "ledger.db", "locks/waiters", "locks", "locks/allocations", "locks/decision"], 3)
)
def test_doctor_fails_where_another_users_files_may_not_be_written(readable_a100: TestMachine, part: str) -> None:
    machine = readable_a100
    machine.tranche("run", "--gpus", "1", "-q", "--", "true")
    for path in (machine.state_dir, *machine.state_dir.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    os.chown(machine.state_dir / part, 0, 0)
    os.chmod(machine.state_dir / part, 0o755 if (machine.state_dir / part).is_dir() else 0o644)
    doctor = json.loads(machine.tranche("doctor", "-o", "json", as_nobody=True, code=1).stdout)
    wrong = [each for each in doctor["findings"] if each["status"] == "fail"]
    assert any(str(machine.state_dir / part) in each["message"] for each in wrong)
    machine.tranche("run", "--gpus", "1", "-q", "--", "true", as_nobody=True, code=None)
