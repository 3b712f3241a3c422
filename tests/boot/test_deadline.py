"""Whatever a cut waits for, it ends in time; and what was set up for that is taken back."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.node.processes import Child, in_child
from tranche.boot.cut import CutInterrupted, ending_after


def never(reason: str) -> None:
    raise AssertionError(reason)


def hang(tell: int) -> None:
    """As a call of the driver that hangs, into which no signal breaks: a mutex that nobody unlocks. Its address is told first."""
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    os.write(tell, b"%#x" % ctypes.addressof(mutex))
    libc.pthread_mutex_lock(mutex)


def wait_until_it_hangs(pid: int, address: str) -> None:
    """Until the process's main thread sleeps in a system call about that address."""
    syscall = Path(f"/proc/{pid}/syscall")
    while address not in syscall.read_text().split()[1:2]:
        time.sleep(0.01)


def test_a_wait_without_end_is_broken_off_in_time() -> None:
    def work() -> tuple[str, bool]:
        before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGTERM)
        try:
            with ending_after(0.05, never):
                threading.Event().wait()
        except CutInterrupted as end:
            after = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGTERM)
            return str(end), before == after and signal.getitimer(signal.ITIMER_REAL)[0] == 0
        return "", False

    said, restored = in_child(work)
    assert said.startswith("it did not finish within 0.05 s")
    assert restored


def test_no_error_of_the_work_can_take_the_end_for_one_of_its_own() -> None:
    def work() -> bool:
        try:
            with ending_after(60.0, never):
                try:
                    os.kill(os.getpid(), signal.SIGTERM)
                    threading.Event().wait()
                except Exception:
                    return False
        except CutInterrupted as end:
            return "SIGTERM" in str(end)
        return False

    assert in_child(work)


def test_work_that_ends_in_time_is_left_alone() -> None:
    def work() -> float:
        with ending_after(60.0, never):
            pass
        return signal.getitimer(signal.ITIMER_REAL)[0]

    assert in_child(work) == 0


@pytest.mark.parametrize(("seconds", "told", "reason"), [(2.0, False, "within 2 s"), (60.0, True, "SIGTERM")])
def test_a_call_that_hangs_does_not_keep_the_process(seconds: float, told: bool, reason: str) -> None:
    reading, writing = os.pipe()

    def leave(why: str) -> None:
        os.write(writing, why.encode())
        os._exit(70)

    def work() -> None:
        with ending_after(seconds, leave, patience=0.2):
            hang(writing)

    child = Child(work)
    wait_until_it_hangs(child.pid, os.read(reading, 100).decode())
    if told:
        child.kill(signal.SIGTERM)
    assert child.wait() == 70
    assert reason in os.read(reading, 1000).decode()


def test_signals_that_come_together_are_heard_as_one() -> None:
    """Python runs a handler once for several of a kind, and undoing what was begun takes longer than the patience."""

    def work() -> str:
        try:
            with ending_after(60.0, never, patience=0.2):
                for _ in range(20):
                    signal.raise_signal(signal.SIGTERM)
        except CutInterrupted as end:
            time.sleep(0.5)
            return str(end)
        return ""

    assert "SIGTERM" in in_child(work)
