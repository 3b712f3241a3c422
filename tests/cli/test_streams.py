"""stdout or stderr closed, full, or without a reader: no traceback, the code that belongs to it, and all work is done."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TRANCHE, TestMachine, wait_until
from tests.support.length import some_of

LISTINGS = (
    ("--help",), ("--version",), ("gpus",), ("gpus", "-o", "json"), ("ps",), ("top",), ("profiles",), ("events",), ("doctor",),
    ("explain", "--gpus", "1"), ("layout", "export"), ("layout", "generate"), ("layout", "plan", "-c", "all-enabled"),
    ("layout", "checkpoint", "-f", "-"), ("sim", "list"),
)  # fmt: skip
BREAKAGES = ("full", "closed", "no reader")


@contextmanager
def broken(how: str) -> Iterator[int]:
    """A descriptor that cannot be written."""
    if how == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    elif how == "no reader":
        reading, descriptor = os.pipe()
        os.close(reading)
    else:
        descriptor = os.open("/dev/null", os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def run(machine: TestMachine, *arguments: str, closed: str = "", stdout: int = -1, stderr: int = -1) -> tuple[int, str]:
    """The exit code and what was written to the streams that were not given; `closed` is the shell's word, such as `>&-`."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *TRANCHE, *arguments]
    done = subprocess.run(
        command, env={**machine.environment, "TRANCHE_SIM_ROOT": str(machine.folder)}, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL, stdout=stdout if stdout >= 0 else subprocess.PIPE,
        stderr=stderr if stderr >= 0 else subprocess.PIPE,
    )  # fmt: skip
    said = (done.stdout or "") + (done.stderr or "")
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    return done.returncode, said


@pytest.fixture
def machine(make_machine: MakeMachine) -> TestMachine:
    made = make_machine("A30-24GB")
    made.tranche("run", "--gpus", "1", "-q", "--", "true")
    return made


@pytest.mark.parametrize("how", BREAKAGES)
@pytest.mark.parametrize("arguments", some_of(LISTINGS, 5), ids=" ".join)
def test_what_was_asked_for_cannot_be_written(machine: TestMachine, arguments: tuple[str, ...], how: str) -> None:
    before = machine.changes()
    with broken(how) as descriptor:
        if how == "closed":
            code, said = run(machine, *arguments, closed=">&-")
        else:
            code, said = run(machine, *arguments, stdout=descriptor)

    if how == "no reader":
        assert code == 141
        assert "error" not in said
    else:
        assert code == 3
        assert "cannot write the output: " in said
    assert machine.changes() == before


@pytest.mark.parametrize("how", BREAKAGES)
def test_a_layout_is_applied_although_nobody_can_be_told(machine: TestMachine, how: str) -> None:
    # Four instances: after a second, when the third or fourth is made, the command says what it does.
    machine.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 0.4)
    with broken(how) as descriptor:
        if how == "closed":
            code, _ = run(machine, "layout", "apply", "-c", "all-1g.6gb", closed="2>&-")
        else:
            code, _ = run(machine, "layout", "apply", "-c", "all-1g.6gb", stderr=descriptor)

    assert code == 0
    assert machine.tranche("layout", "assert", "-c", "all-1g.6gb").returncode == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("how", BREAKAGES)
def test_the_command_runs_and_its_own_code_is_returned(machine: TestMachine, how: str, stream: str) -> None:
    mark = machine.folder / "it-ran"
    command = ("run", "--mig-profile", "1g.6gb", "--", "sh", "-c", f"touch {mark}; exit 7")
    with broken(how) as descriptor:
        if how == "closed":
            code, _ = run(machine, *command, closed={"stdout": ">&-", "stderr": "2>&-"}[stream])
        elif stream == "stdout":
            code, _ = run(machine, *command, stdout=descriptor)
        else:
            code, _ = run(machine, *command, stderr=descriptor)

    assert code == 7
    assert mark.exists()
    assert machine.json("ps")["allocations"] == []


def test_an_error_that_nobody_can_read_has_its_code(machine: TestMachine) -> None:
    for how in ("full", "no reader"):
        with broken(how) as descriptor:
            assert run(machine, "run", "--gpu", "2", "--", "true", stderr=descriptor)[0] == 2
            assert run(machine, "run", "--no-such-option", stderr=descriptor)[0] == 2
    assert run(machine, "run", "--gpu", "2", "--", "true", closed="2>&-")[0] == 2


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "<&-", ">&-"])
def test_no_file_of_ours_becomes_a_stream_of_the_command(machine: TestMachine, closed: str) -> None:
    seen = machine.folder / "seen"
    look = f'seen="$(readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2)"; echo "$seen" > {seen}'
    code, _ = run(machine, "run", "--gpus", "1", "-q", "--", "sh", "-c", look, closed=closed)

    assert code == 0
    assert len(seen.read_text().split()) == 3
    assert str(machine.folder) not in seen.read_text()


def test_the_share_that_cannot_be_given_back_does_not_hide_the_commands_code(machine: TestMachine) -> None:
    damage = f"import sqlite3, sys; sqlite3.connect('{machine.ledger}').execute('DROP TABLE events'); sys.exit(7)"
    done = machine.tranche("run", "--gpus", "1", "-q", "--", "python3", "-c", damage, code=7)

    assert "warning: the share is not free yet; the next tranche command frees it: the ledger" in done.stderr


def test_following_events_ends_when_the_reader_leaves(machine: TestMachine) -> None:
    reading, writing = os.pipe()
    follower = subprocess.Popen(
        [*TRANCHE, "events", "--follow"], env=machine.environment, stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert b"Released" in _read_until(reading, b"Released")
    os.close(reading)
    wait_until(lambda: follower.poll() is not None)

    assert follower.communicate()[1] == ""
    assert follower.returncode == 141


def _read_until(descriptor: int, word: bytes) -> bytes:
    read = b""
    while word not in read and (more := os.read(descriptor, 4096)):
        read += more
    return read
