"""A process that is stopped while it holds a lock holds nobody up, and is stopped again afterwards."""

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
from tranche.node.lock_table import lock_pids
from tranche.node.locks import FileLock
from tranche.node.session import process_stopped

_HOLDER = """
import os, signal, sys
from pathlib import Path
from tranche.node.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
print(flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
lock.release()
sys.stdin.read()
"""


@contextmanager
def stopped_holder(path: Path) -> Iterator[int]:
    """A process that holds the lock, is stopped, and lets go as soon as it is continued."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            wait_until(lambda: process_stopped(holder.pid))
            yield holder.pid
        finally:
            holder.kill()


def test_who_waits_has_a_stopped_holder_continue_until_it_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "decision"
    with stopped_holder(path) as pid:
        with FileLock(path) as lock:
            assert lock_pids(lock.descriptor) == (os.getpid(),)
        wait_until(lambda: process_stopped(pid))


def test_who_does_not_wait_continues_nobody(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    with stopped_holder(path) as pid:
        with pytest.raises(BlockingIOError):
            FileLock(path, wait=False)
        assert process_stopped(pid)
        os.kill(pid, signal.SIGCONT)


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
