"""The named pipe on which a waiter is woken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tranche.local.wakeup_pipe import WakeupPipe, ring


def test_rings_pile_up_to_one_and_are_remembered_until_the_waiter_listens(tmp_path: Path) -> None:
    bell = WakeupPipe(tmp_path / "bell")
    assert not bell.wait(0.0)
    assert ring(tmp_path / "bell")
    assert ring(tmp_path / "bell")
    assert bell.wait(60.0)
    assert not bell.wait(0.0)
    bell.close()


def test_a_full_pipe_still_counts_as_rung(tmp_path: Path) -> None:
    bell = WakeupPipe(tmp_path / "bell")
    for _ in range(70_000):  # more than the 64 KiB that a pipe holds
        assert ring(tmp_path / "bell")
    assert bell.wait(60.0)
    bell.close()


def test_nobody_is_woken_where_nobody_waits(tmp_path: Path) -> None:
    assert not ring(tmp_path / "bell")
    WakeupPipe(tmp_path / "bell").close()
    assert not ring(tmp_path / "bell")
    assert list(tmp_path.iterdir()) == []


def test_a_waiter_may_leave_while_it_is_being_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bell = WakeupPipe(tmp_path / "bell")
    write = os.write

    def leave_then_write(descriptor: int, data: bytes) -> int:
        bell.close()
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", leave_then_write)
    assert not ring(tmp_path / "bell")
