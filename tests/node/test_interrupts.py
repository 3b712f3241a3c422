"""Signals that tell the process to end are noted at once and obeyed only where nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tranche.core.errors import GpuBusy
from tranche.node.locks.interrupts import WaitInterrupted, heeding_signals, interruptible, uninterruptible


def _ask_to_end(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_nothing_obeyed_ends_the_block(number: signal.Signals) -> None:
    reached = []

    @heeding_signals()
    def block() -> None:
        _ask_to_end(number)
        reached.append("its end")

    with pytest.raises(WaitInterrupted) as stop:
        block()
    assert reached
    assert stop.value.exit_code == 128 + number


def test_a_signal_replaces_the_error_that_it_caused() -> None:
    @heeding_signals()
    def block() -> None:
        _ask_to_end()
        raise GpuBusy("the compiler was ended by the same Ctrl-C")

    with pytest.raises(WaitInterrupted):
        block()


def test_an_error_without_a_signal_stays() -> None:
    with pytest.raises(GpuBusy), heeding_signals():
        raise GpuBusy("in use")


def test_a_wait_that_can_be_left_is_left_at_once_and_what_clears_up_is_not() -> None:
    cleared = []

    @heeding_signals()
    def block() -> None:
        threading.Timer(0.1, _ask_to_end).start()
        began = time.monotonic()
        try:
            with interruptible():
                time.sleep(30)
        finally:
            assert time.monotonic() - began < 20
            _ask_to_end()
            with uninterruptible(), interruptible():
                cleared.append("everything")

    with pytest.raises(WaitInterrupted):
        block()
    assert cleared


def test_what_handled_signals_before_does_so_afterwards() -> None:
    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGHUP, mine)
    try:
        with heeding_signals():
            pass
        assert signal.getsignal(signal.SIGHUP) is mine
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with heeding_signals():
            _ask_to_end(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
