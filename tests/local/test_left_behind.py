"""A share lives as long as anything that came of its command, however far from the command that has gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.machines import TRANCHE, TestMachine, machine_in, wait_until
from tranche.node.processes import process_at

WHOLE = ("--mig-profile", "7g.40gb")
# Forks twice, leaves the session and closes everything that it inherited, as daemons do; then says its pid.
_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(3, 4096)
    with open(sys.argv[1] + ".tmp", "w") as told:
        told.write(str(os.getpid()))
    os.rename(sys.argv[1] + ".tmp", sys.argv[1])
    time.sleep(600)
"""


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[TestMachine]:
    """One A100 40 GB, which is all taken by one share."""
    with machine_in(tmp_path, "A100-40GB") as machine:
        yield machine


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Path]:
    """Where the daemon says its pid; it is ended after the test."""
    path = tmp_path / "daemon.pid"
    yield path
    if path.exists():
        with suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)


def starting(told: Path, afterwards: str) -> tuple[str, ...]:
    """A command that leaves a daemon behind, and then does something else."""
    script = 'python=$1; daemon=$2; told=$3; "$python" -c "$daemon" "$told" > /dev/null 2>&1; '
    script += f'while [ ! -e "$told" ]; do sleep 0.01; done; {afterwards}'
    return ("sh", "-c", script, "sh", sys.executable, _DAEMON, str(told))


def shares(machine: TestMachine) -> list[tuple[str, int]]:
    """Id and pid of every allocation."""
    return [(each["id"], each["pid"]) for each in machine.json("ps")["allocations"]]


def test_what_a_command_left_behind_keeps_its_share(a100: TestMachine, told: Path) -> None:
    done = a100.tranche("run", *WHOLE, "--", *starting(told, "exit 3"), code=3)
    daemon = int(told.read_text())
    assert f"its share stays with pid {daemon} until it ends" in done.stderr
    ((name, pid),) = shares(a100)
    assert pid == daemon
    a100.tranche("run", "--no-wait", *WHOLE, "--", "true", code=32)
    assert str(daemon) in a100.tranche("release", name, code=80).stderr
    os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: shares(a100) == [])
    kinds = [each["type"] for each in a100.json("events")["events"]]
    assert kinds[-2:] == ["Kept", "Released"]
    a100.tranche("run", "--no-wait", *WHOLE, "--", "true")


def test_who_waits_is_served_when_what_was_left_behind_ends(a100: TestMachine, told: Path) -> None:
    a100.tranche("run", *WHOLE, "--", *starting(told, "exit 0"))
    waiter = a100.wait_in_queue(*WHOLE)
    os.kill(int(told.read_text()), signal.SIGKILL)
    wait_until(lambda: a100.json("ps")["waiters"] == [] and len(shares(a100)) == 1, waiter)


@pytest.mark.parametrize("order", ["tranche first", "command first"])
def test_it_keeps_the_share_after_kill_9_of_tranche_and_of_the_command(
    a100: TestMachine, told: Path, order: str
) -> None:
    command = subprocess.Popen(
        [*TRANCHE, "run", "-q", *WHOLE, "--", *starting(told, "exec sleep 600")], env=a100.environment
    )
    wait_until(told.exists)
    daemon = int(told.read_text())
    ((_, workload),) = shares(a100)
    if order == "tranche first":
        command.kill()
        command.wait()
        os.kill(workload, signal.SIGKILL)
    else:
        os.kill(workload, signal.SIGKILL)
        command.kill()
        command.wait()
    wait_until(lambda: [pid for _, pid in shares(a100)] == [daemon])
    a100.tranche("run", "--no-wait", *WHOLE, "--", "true", code=32)
    os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: shares(a100) == [])


def test_taking_a_share_back_ends_what_was_left_behind(a100: TestMachine, told: Path) -> None:
    a100.tranche("run", *WHOLE, "--", *starting(told, "exit 0"))
    ((name, daemon),) = shares(a100)
    done = a100.tranche("release", name, "--terminate")
    assert f"SIGTERM to pid {daemon}" in done.stderr
    assert shares(a100) == []
    assert process_at(daemon) is None


def test_taking_a_share_back_while_its_command_runs_ends_its_daemon_too(a100: TestMachine, told: Path) -> None:
    work = a100.start("run", "-q", *WHOLE, "--", *starting(told, "exec sleep 600"))
    wait_until(told.exists, work)
    ((name, _),) = shares(a100)
    a100.tranche("release", name, "--terminate")
    assert work.wait(timeout=60) == 128 + signal.SIGTERM
    assert shares(a100) == []
    assert process_at(int(told.read_text())) is None


def test_what_ends_with_its_command_or_a_moment_later_is_not_spoken_of(a100: TestMachine) -> None:
    done = a100.tranche("run", *WHOLE, "--", "sh", "-c", "sleep 0.05 & exit 0")
    assert "stays with" not in done.stderr
    assert shares(a100) == []
