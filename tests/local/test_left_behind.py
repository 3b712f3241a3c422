"""A share lives as long as anything that came of its command, however far from the command that has gone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.local.left_behind import STRANGER, starting, starting_stranger
from tests.machines import TRANCHE, TestMachine, machine_in, needs_root, wait_until
from tests.support.length import some_of
from tranche.node.processes.processes import process_at
from tranche.node.state.session import process_stopped

WHOLE = ("--mig-profile", "7g.40gb")


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[TestMachine]:
    """One A100 40 GB, which is all taken by one share."""
    with machine_in(tmp_path, "A100-40GB") as machine:
        yield machine


def shares(machine: TestMachine) -> list[tuple[str, int]]:
    """Id and pid of the share of every command that runs, or of what it left."""
    return [(each["id"], each["pid"]) for each in machine.running()]


def test_what_a_command_left_behind_keeps_its_share(a100: TestMachine, told: Path) -> None:
    done = a100.tranche("run", *WHOLE, "--", *starting(told, "exit 3"), code=3)
    daemon = int(told.read_text())
    assert f"pid {daemon} keeps the share until it ends" in done.stderr
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


@pytest.mark.parametrize("order", some_of(["tranche first", "command first"], 1))
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


@pytest.mark.parametrize("left_behind", some_of([starting_stranger, starting], 1))
def test_taking_a_share_back_while_its_command_runs_ends_what_it_has_started_too(
    a100: TestMachine, told: Path, left_behind: Callable[[Path, str], tuple[str, ...]]
) -> None:
    work = a100.start("run", "-q", *WHOLE, "--", *left_behind(told, "exec sleep 600"))
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


def test_an_orphan_without_lock_and_environment_keeps_the_share(a100: TestMachine, told: Path) -> None:
    done = a100.tranche("run", *WHOLE, "--", *starting_stranger(told, "exit 3"), code=3)
    stranger = int(told.read_text())
    assert Path(f"/proc/{stranger}/environ").read_bytes().find(b"TRANCHE") < 0
    assert f"pid {stranger} keeps the share until it ends" in done.stderr
    assert [pid for _, pid in shares(a100)] == [stranger]
    a100.tranche("run", "--no-wait", *WHOLE, "--", "true", code=32)
    os.kill(stranger, signal.SIGKILL)
    wait_until(lambda: shares(a100) == [])


def test_a_process_that_was_there_before_the_command_does_not_keep_the_share(a100: TestMachine) -> None:
    """The shell becomes `tranche run` and leaves it a child that has nothing to do with the share."""
    script = 'sleep 600 > /dev/null 2>&1 & echo $!; exec "$@"'
    command = [*TRANCHE, "run", "-q", *WHOLE, "--", "true"]
    done = subprocess.run(
        ["sh", "-c", script, "sh", *command], env=a100.environment, capture_output=True, text=True, check=False
    )
    os.kill(int(done.stdout), signal.SIGKILL)
    assert (done.returncode, done.stderr) == (0, "")
    assert shares(a100) == []


def test_orphans_that_end_while_the_command_runs_leave_no_zombies(a100: TestMachine, tmp_path: Path) -> None:
    done = tmp_path / "done"
    script = 'i=0; while [ $i -lt 100 ]; do (sh -c "exit 9" &); i=$((i+1)); done; : > "$0"; read line; exit 6'
    work = subprocess.Popen(
        [*TRANCHE, "run", "-q", *WHOLE, "--", "sh", "-c", script, str(done)],
        env=a100.environment,
        stdin=subprocess.PIPE,
    )
    try:
        wait_until(done.exists)
        ((_, command),) = shares(a100)
        wait_until(lambda: children(work.pid) == [command])
    finally:
        work.communicate(b"\n", timeout=60)
    assert work.returncode == 6
    assert shares(a100) == []


def children(parent: int) -> list[int]:
    """The children of a process, zombies too."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.parent.name))
    return found


def starting_strangers(told: Path, count: int) -> tuple[str, ...]:
    """A command that leaves so many processes without lock and environment behind."""
    script = 'for i in $(seq "$2"); do env -i setsid sh -c "$0" "$1.$i" & done; '
    script += 'for i in $(seq "$2"); do while [ ! -e "$1.$i" ]; do sleep 0.01; done; done'
    return ("sh", "-c", script, STRANGER, str(told), str(count))


@pytest.fixture
def strangers(a100: TestMachine, told: Path) -> Iterator[list[int]]:
    """Three processes that a command left behind, without lock and environment."""
    a100.tranche("run", "-q", *WHOLE, "--", *starting_strangers(told, 3))
    pids = [int(told.with_name(f"{told.name}.{i}").read_text()) for i in (1, 2, 3)]
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_every_orphan_keeps_the_share_and_not_only_the_oldest(a100: TestMachine, strangers: list[int]) -> None:
    left = sorted(strangers, key=lambda pid: process_at(pid).started)  # type: ignore[union-attr]
    while left:
        ((_, pid),) = shares(a100)
        assert pid in left
        (keeper,) = [each["keeper"] for each in a100.json("ps")["allocations"]]
        assert {pid, *(other["pid"] for other in keeper.get("others", ()))} == set(left)
        assert f"{pid} +{len(left) - 1}" in a100.tranche("ps").stdout or len(left) == 1
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda dead=pid: process_at(dead) is None)  # type: ignore[misc]
        left.remove(pid)
    assert shares(a100) == []
    assert [each["type"] for each in a100.json("events")["events"]][-4:] == ["Kept", "Kept", "Kept", "Released"]


def test_taking_a_share_back_ends_every_orphan(a100: TestMachine, strangers: list[int]) -> None:
    ((name, _),) = shares(a100)
    refused = a100.tranche("release", name, code=80).stderr
    ended = a100.tranche("release", name, "--terminate").stderr
    assert all(str(pid) in refused and str(pid) in ended for pid in strangers)
    assert [process_at(pid) for pid in strangers] == [None, None, None]
    assert shares(a100) == []


@needs_root
def test_what_a_shell_started_before_it_became_the_run_stays_stopped(tmp_path: Path) -> None:
    with machine_in(tmp_path, "A100-40GB") as machine:
        known = tmp_path / "sibling"
        script = f'sleep 600 & echo $! > {known}; exec "$@"'
        ask = ["sh", "-c", script, "sh", *TRANCHE, "run", "-q", "--gpus", "1", "--", "sleep", "600"]
        with subprocess.Popen(ask, env=machine.environment) as run:
            wait_until(lambda: [each["phase"] for each in machine.json("ps")["allocations"]] == ["active"])
            wait_until(lambda: bool(machine.json("ps")["allocations"][0]["keeper"].get("pid")))
            (share,) = machine.json("ps")["allocations"]
            sibling = int(known.read_text())
            try:
                for pid in (sibling, run.pid, share["keeper"]["pid"]):
                    os.kill(pid, signal.SIGSTOP)
                machine.tranche("release", share["id"], "--terminate", "--grace", "5s")
                assert run.wait(60) == 128 + signal.SIGTERM
                assert process_stopped(sibling)
            finally:
                os.kill(sibling, signal.SIGKILL)
