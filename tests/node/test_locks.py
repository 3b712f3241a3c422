"""Locks: exclusive, gone with the process that holds them, and kept by a child that inherited them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.machines import needs_root, wait_until
from tests.node.processes import Child, in_child
from tranche.core.errors import LedgerUnavailable, PermissionDenied
from tranche.node.locks.locks import FileLock, LockTimeout, is_held, lock_holder, open_lock_file
from tranche.node.state.session import StateFolder, process_lives, process_start_time

NOBODY = 65534


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    assert not is_held(path)
    lock = FileLock(path)
    assert is_held(path)
    assert is_held(path), "asking changes nothing"
    lock.release()
    lock.release()
    assert not is_held(path)
    assert path.exists()


def test_a_lock_whose_name_is_not_used_again_can_be_removed(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    lock.release(remove=True)
    assert not (tmp_path / "lock").exists()


def test_a_second_holder_waits_for_the_first(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    order = []
    first = FileLock(path)

    def second() -> None:
        with FileLock(path):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    order.append("first")
    first.release()
    thread.join()
    assert order == ["first", "second"]


def test_who_waits_for_so_long_and_no_longer_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path):
        with pytest.raises(LockTimeout):
            FileLock(path, seconds=0.05)
        holder = lock_holder(path)
        assert holder is not None
        assert holder.pid == os.getpid()
        assert f"pid {os.getpid()} (" in str(holder)
    # The thread that waited gives the lock back as soon as it gets it, which may be after a moment in which nobody has it.
    wait_until(lambda: not any(thread.name == "lock" for thread in threading.enumerate()))
    assert not is_held(path)
    assert lock_holder(path) is None
    FileLock(path, seconds=60).release()


def test_who_waits_gets_the_lock_within_the_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = FileLock(path)
    threading.Timer(0.1, first.release).start()
    with FileLock(path, seconds=60) as second:
        assert second.in_place
        assert is_held(path)
    assert not is_held(path)


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    def hold() -> None:
        lock = FileLock(path)
        (tmp_path / "ready").touch()
        signal.pause()
        lock.release()

    child = Child(hold)
    wait_until((tmp_path / "ready").exists)
    assert is_held(path)
    child.end()
    assert not is_held(path)


def test_a_command_that_inherits_the_lock_keeps_it_and_others_do_not(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    sleeper = [sys.executable, "-c", "import sys; sys.stdin.read()"]

    def start(inherit: bool) -> subprocess.Popen[bytes]:
        lock = FileLock(path)
        os.set_inheritable(lock.descriptor, inherit)
        process = subprocess.Popen(sleeper, stdin=subprocess.PIPE, close_fds=False)
        lock.release()
        return process

    with start(inherit=False) as process:
        # The kernel wakes the parent just before it closes what the new program does not inherit.
        wait_until(lambda: not is_held(path))
        process.kill()
    with start(inherit=True) as process:
        assert is_held(path)
        process.kill()
        process.wait()
        assert not is_held(path)


def test_many_processes_count_without_losing_any(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        for _ in range(25):
            with FileLock(tmp_path / "lock"):
                counter.write_text(str(int(counter.read_text()) + 1))

    for child in [Child(count) for _ in range(4)]:
        child.result()
    assert counter.read_text() == "100"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody who may not write")
def test_no_permission_is_an_error_of_its_own(tmp_path: Path) -> None:
    def refused() -> str:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            open_lock_file(tmp_path / "lock")
        except PermissionDenied as error:
            return error.hint
        return ""

    assert "sudo" in in_child(refused)


def test_a_file_where_the_folder_should_be_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerUnavailable):
        FileLock(tmp_path / "file" / "lock")


def test_a_process_is_known_by_pid_and_start_time() -> None:
    own = process_start_time(os.getpid())
    assert own > 0
    assert process_lives(os.getpid(), own)
    assert not process_lives(os.getpid(), own + 1), "another process that got the same pid later"
    assert not process_lives(0, 0)
    assert not process_lives(-1, 0)


def test_a_process_that_ended_does_not_live_not_even_as_a_zombie() -> None:
    child = Child(lambda: None)
    started = process_start_time(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    assert process_start_time(child.pid) == 0
    assert not process_lives(child.pid, started or 1)
    child.result()
    assert process_start_time(child.pid) == 0


def test_a_name_with_spaces_and_parentheses_does_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    program.symlink_to(sys.executable)
    with subprocess.Popen([str(program), "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        wait_until(lambda: "a) b (c" in Path(f"/proc/{process.pid}/stat").read_text())
        started = process_start_time(process.pid)
        assert started >= process_start_time(os.getpid())
        assert process_lives(process.pid, started)
        process.kill()


def test_every_name_has_a_place_of_its_own(tmp_path: Path) -> None:
    places = StateFolder(tmp_path)
    found = [places.ledger, places.decision_lock, places.gpu_locks, *map(places.session, "ab")]
    found += [*map(places.allocation, "ab"), *map(places.waiter, "ab"), *map(places.wakeup_pipe, "ab")]
    assert len(set(found)) == len(found)
    assert all(tmp_path in path.parents for path in found)


def test_nobody_else_may_open_a_lock_and_hold_everybody_up(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.touch(0o644)
    for path in (old, tmp_path / "locks" / "new"):
        FileLock(path).release()
        assert path.stat().st_mode & 0o777 == 0o600


@needs_root
def test_a_lock_that_may_not_be_looked_at_counts_as_held(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "lock"
    FileLock(path).release()

    def look() -> bool:
        os.setuid(NOBODY)
        return is_held(path)

    assert in_child(look)
    assert not is_held(path)
