"""Whatever a cut waits for, it ends in time; and what was set up for that is taken back."""

from __future__ import annotations

import os
import signal
import threading

from tests.node.processes import in_child
from tranche.boot.deadline import CutInterrupted, ending_after


def test_a_wait_without_end_is_broken_off_in_time() -> None:
    def work() -> tuple[str, bool]:
        before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGTERM)
        try:
            with ending_after(0.05):
                threading.Event().wait()
        except CutInterrupted as end:
            after = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGTERM)
            return str(end), before == after and signal.getitimer(signal.ITIMER_REAL)[0] == 0
        return "", False

    said, restored = in_child(work)
    assert said.startswith("it did not end within 0.05 s")
    assert restored


def test_no_error_of_the_work_can_take_the_end_for_one_of_its_own() -> None:
    def work() -> bool:
        try:
            with ending_after(60.0):
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
        with ending_after(60.0):
            pass
        return signal.getitimer(signal.ITIMER_REAL)[0]

    assert in_child(work) == 0
