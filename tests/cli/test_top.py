"""`tranche top`: the picture once, as data, and live on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.conftest import MakeMachine
from tests.conftest import Golden
from tests.machines import TRANCHE, TestMachine, scrub


def test_the_picture_of_every_kind_of_use(make_machine: MakeMachine, golden: Golden) -> None:
    machine = make_machine("A100-40GB", "A30-24GB", "T4")
    machine.cut_by_hand(0, "9", "19")
    device = machine.json("gpus")["gpus"][0]["slices"][1]["devices"][0]["uuid"]
    machine.machine.inject_busy(device, pid=5004242, name="notebook", memory=2 * 1024**3)
    machine.hold("--mig-profile", "2g.10gb")
    machine.hold("--gpus", "1", "--gpu-model", "A30")
    machine.hold("--gpu-memory", "3Gi", "--gpu-model", "T4")
    machine.hold("--gpu-memory", "3Gi", "--gpu-model", "T4")
    machine.wait_in_queue("--gpus", "1", "--gpu-model", "A30")
    document = machine.json("top", "--once")
    ids = [each["id"] for each in (*document["allocations"], *document["waiters"])]
    assert len(ids) == 5
    text = scrub(machine.tranche("top", "--once").stdout, ids)
    golden("top.txt", re.sub(r" +0s ", "  0s ", text))


def test_json_has_what_the_picture_shows(two_a100: TestMachine) -> None:
    two_a100.hold("--mig-profile", "1g.5gb")
    document = two_a100.json("top")
    assert document["kind"] == "Overview"
    assert document["gpus"] == two_a100.json("gpus")["gpus"]
    assert document["allocations"] == two_a100.json("ps")["allocations"]


def test_without_a_terminal_it_is_printed_once(two_a100: TestMachine) -> None:
    assert two_a100.tranche("top").stdout == two_a100.tranche("top", "--once").stdout


@pytest.mark.parametrize(("key", "code"), [(b"q", 0), (b"\x03", 130)], ids=["q", "ctrl-c"])
def test_the_live_view_ends_with_a_key_and_restores_the_terminal(two_a100: TestMachine, key: bytes, code: int) -> None:
    with _on_a_terminal(two_a100, "--interval", "0.1") as (terminal, process):
        screen = _read_until(terminal, b"GPU 1")
        os.write(terminal, key)
        screen += _read_until(terminal, b"\x1b[?1049l")
        assert process.wait(timeout=60) == code
    assert b"\x1b[?1049h" in screen, "the alternate screen was not used"


def test_the_live_view_finds_lines(two_a100: TestMachine) -> None:
    with _on_a_terminal(two_a100, "--interval", "60", COLUMNS="120", LINES="12") as (terminal, process):
        _read_until(terminal, b"q ends")
        for key, answer in (
            (b"/", b"/"),
            (b"g", b"/g"),
            (b"p", b"/gp"),
            (b"\r", b"those with 'gp'"),
            (b"\x1b[B", b"q ends"),
        ):
            os.write(terminal, key)
            _read_until(terminal, answer)
        os.write(terminal, b"q")
        _read_until(terminal, b"\x1b[?1049l")
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("arguments", [("--interval", "0"), ("--interval", "x"), ("-o", "wide")])
def test_bad_input_is_refused(two_a100: TestMachine, arguments: tuple[str, ...]) -> None:
    assert two_a100.tranche("top", *arguments, code=2).stdout == ""


@contextmanager
def _on_a_terminal(
    machine: TestMachine, *arguments: str, **variables: str
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """`tranche top` on a terminal of its own: what types and reads there, and the process."""
    parent, child = pty.openpty()
    with subprocess.Popen(
        [*TRANCHE, "top", *arguments],
        env={**machine.environment, "TERM": "xterm", **variables},
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
        preexec_fn=_own_terminal,
    ) as process:
        os.close(child)
        try:
            yield parent, process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            os.close(parent)


def _own_terminal() -> None:
    """Make the pseudo-terminal on stdin the new session's own, so that Ctrl-C reaches the process."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(descriptor: int, mark: bytes) -> bytes:
    """What the terminal shows until the mark has come."""
    seen = b""
    deadline = time.monotonic() + 60
    while mark not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([descriptor], [], [], 1.0)[0]:
            try:
                seen += os.read(descriptor, 65536)
            except OSError:  # the other end is closed
                assert mark in seen, seen
    return seen
