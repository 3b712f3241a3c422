"""A process that is stopped while it holds a lock holds nobody up; once it was continued, nobody stops it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.machines import wait_until
from tranche.node.locks.locks import FileLock, lock_holder, lock_pids
from tranche.node.state.session import StateFolder, process_stopped
from tranche.node.store.ledger import Ledger

_HOLDER = """
import os, signal, sys
from pathlib import Path
from tranche.node.locks.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
print(flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
lock.release()
sys.stdin.readline()
print(flush=True)
"""

_STOPPED_BY_TERMINAL = """
import os, signal, sys
from pathlib import Path
from tranche.node.store.ledger import Ledger
from tranche.node.state.session import StateFolder
from tranche.node.locks.deciding import taking_gpu, taking_turn
places = StateFolder(Path(sys.argv[1]))
ledger = Ledger(places.ledger)
with taking_turn(places, None), taking_gpu(places.gpu_locks / "a", "a", 5), ledger.write():
    for number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        os.kill(0, number)
    print("held", flush=True)
print("free", flush=True)
"""


@contextmanager
def stopped_holder(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock, is stopped, and lets go as soon as it is continued; it answers a line then."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            wait_until(lambda: process_stopped(holder.pid))
            yield holder
        finally:
            holder.kill()


def test_who_waits_has_a_stopped_holder_continue_for_good(tmp_path: Path) -> None:
    path = tmp_path / "decision"
    with stopped_holder(path) as holder:
        with FileLock(path) as lock:
            assert lock_pids(lock.descriptor) == (os.getpid(),)
        assert holder.stdin is not None
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        wait_until(lambda: process_stopped(holder.pid) or holder.poll() is not None)
        assert holder.returncode == 0


def test_a_stop_of_the_terminal_waits_until_no_lock_is_held(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _STOPPED_BY_TERMINAL, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            wait_until(lambda: process_stopped(holder.pid))
            places = StateFolder(tmp_path)
            assert lock_holder(places.decision_lock) is None
            assert lock_holder(places.gpu_locks / "a") is None
            with Ledger(places.ledger).write():
                pass
            os.kill(holder.pid, signal.SIGCONT)
            assert holder.stdout.readline() == "free\n"
            assert holder.wait(60) == 0
        finally:
            holder.kill()


def test_who_waits_for_a_lock_can_be_stopped_by_the_terminal(tmp_path: Path) -> None:
    places = StateFolder(tmp_path)
    Ledger(places.ledger).close()
    with FileLock(places.decision_lock):
        command = [sys.executable, "-c", _STOPPED_BY_TERMINAL, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as waiter:
            try:
                wait_until(lambda: waits_for(places.decision_lock, waiter.pid))
                # It may have only begun to wait: a stop that came before that is held back.
                wait_until(lambda: stops_at(waiter.pid))
            finally:
                waiter.kill()


def stops_at(pid: int) -> bool:
    """Ask the process to stop, as a terminal does; whether it is stopped."""
    os.kill(pid, signal.SIGTSTP)
    return process_stopped(pid)


def waits_for(lock: Path, pid: int) -> bool:
    """Whether the process waits for the lock, as the kernel's table has it."""
    inode = lock.stat().st_ino
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(line[1] == "->" and line[5] == str(pid) and line[6].endswith(f":{inode}") for line in lines)


def test_who_does_not_wait_continues_nobody(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    with stopped_holder(path) as holder:
        with pytest.raises(BlockingIOError):
            FileLock(path, wait=False)
        assert process_stopped(holder.pid)
        os.kill(holder.pid, signal.SIGCONT)


def test_the_holders_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    file, locks = tmp_path / "lock", tmp_path / "locks"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        found = os.fstat(descriptor)
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        locks.write_text(
            f"1: FLOCK  ADVISORY  WRITE 4711 {place} 0 EOF\n"
            f"1: -> FLOCK  ADVISORY  WRITE 4712 {place} 0 EOF\n"
            f"2: POSIX  ADVISORY  WRITE 4713 {place} 100 120\n"
            f"3: FLOCK  ADVISORY  WRITE 4714 {place}1 0 EOF\n"
        )
        assert lock_pids(descriptor, table=locks) == (4711,)
        assert lock_pids(file, kind="POSIX", byte=120, table=locks) == (4713,)
        assert lock_pids(file, kind="POSIX", byte=121, table=locks) == ()
        assert lock_pids(descriptor, table=tmp_path / "none") == ()
        assert lock_pids(tmp_path / "none", table=locks) == ()
    finally:
        os.close(descriptor)
