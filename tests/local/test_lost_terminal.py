"""A terminal that is lost (a closed window, a broken connection) ends the command of a share as it ends commands without one."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.local.test_child import shell_with_job
from tests.machines import TRANCHE, TestMachine, machine_in, wait_until
from tranche.node.state.session import process_stopped

SLICE = ("--mig-profile", "1g.5gb")
# Writes down each signal that it gets, and ends with 7 when the test says so.
_COMMAND = """
import os, signal, sys, time
folder = sys.argv[1]
def heard(number, frame):
    with open(folder + "/heard", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, heard)
with open(folder + "/ready.tmp", "w") as file:
    file.write(str(os.getpid()))
os.rename(folder + "/ready.tmp", folder + "/ready")
while not os.path.exists(folder + "/go"):
    time.sleep(0.01)
os._exit(7)
"""


@dataclass(frozen=True, slots=True)
class Work:
    """A command that writes down what it hears, in a share."""

    folder: Path
    before: tuple[str, ...] = ()

    @property
    def line(self) -> list[str]:
        """The command line that runs it in a share; `before` comes before the command."""
        return [*TRANCHE, "run", "-q", *SLICE, "--", *self.before, sys.executable, "-c", _COMMAND, str(self.folder)]

    @property
    def heard(self) -> list[str]:
        """The signals that it has got."""
        file = self.folder / "heard"
        return file.read_text().split() if file.exists() else []

    def begin(self) -> int:
        """Wait until it runs; its pid."""
        wait_until((self.folder / "ready").exists)
        return int((self.folder / "ready").read_text())

    def finish(self) -> None:
        """Have it end."""
        (self.folder / "go").touch()


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[TestMachine]:
    with machine_in(tmp_path, "A100-40GB") as machine:
        yield machine


@contextmanager
def leader_of_a_terminal(command: list[str], machine: TestMachine) -> Iterator[tuple[int, int]]:
    """The command as the leader of a terminal's session, as in `ssh -t HOST COMMAND`; its pid, and the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(machine.folder)  # nohup leaves a file where it is started
        os.execvpe(command[0], command, machine.environment)
    try:
        yield pid, terminal
    finally:
        with suppress(OSError):
            os.close(terminal)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def code_of(pid: int) -> int:
    """The exit code of a child that ends."""
    found: list[int] = []

    def ended() -> bool:
        if not found:
            reaped, status = os.waitpid(pid, os.WNOHANG)
            found.extend([os.waitstatus_to_exitcode(status)] if reaped else [])
        return bool(found)

    wait_until(ended)
    return found[0]


def pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal was sent to the process that it has not taken yet."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    words = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(word >> (number - 1) & 1 for word in words)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def hung_up(pid: int) -> bool:
    """Whether the process has lost its terminal."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[4]) == 0


def test_a_run_that_leads_the_session_passes_the_lost_terminal_on_and_ctrl_c_not_twice(a100: TestMachine) -> None:
    """The kernel tells a lost terminal to the leader alone, and Ctrl-C to the whole group in the foreground."""
    work = Work(a100.folder)
    with leader_of_a_terminal(work.line, a100) as (pid, terminal):
        work.begin()
        os.write(terminal, b"\x03")
        wait_until(lambda: bool(work.heard) and not pending(pid, signal.SIGINT))
        os.close(terminal)
        wait_until(lambda: "SIGHUP" in work.heard)
        work.finish()
        assert code_of(pid) == 7
    assert work.heard == ["SIGINT", "SIGHUP"]
    assert a100.json("ps")["allocations"] == []


def test_a_run_in_the_foreground_of_a_shell_passes_on_no_second_hangup(a100: TestMachine) -> None:
    """The shell leads the session: its end is told to the whole group in the foreground, the command included."""
    work = Work(a100.folder)
    with shell_with_job(work.line, a100.environment) as job:
        run = parent_of(work.begin())
        os.kill(job.shell, signal.SIGKILL)
        os.waitpid(job.shell, 0)
        wait_until(lambda: bool(work.heard) and not pending(run, signal.SIGHUP))
        work.finish()
        wait_until(lambda: a100.json("ps")["allocations"] == [])
    assert work.heard == ["SIGHUP"]


def test_a_stopped_run_is_told_when_its_shell_is_gone(a100: TestMachine) -> None:
    """The kernel hangs up on a stopped group that nobody can continue any more, and continues it."""
    work = Work(a100.folder)
    with shell_with_job(work.line, a100.environment) as job:
        run = parent_of(pid := work.begin())
        os.write(job.terminal, b"\x1a")
        wait_until(lambda: process_stopped(run) and process_stopped(pid))
        os.kill(job.shell, signal.SIGKILL)
        os.waitpid(job.shell, 0)
        wait_until(lambda: bool(work.heard))
        work.finish()
        wait_until(lambda: a100.json("ps")["allocations"] == [])
    assert set(work.heard) == {"SIGHUP"}


def test_nohup_keeps_the_command_when_the_terminal_is_lost(a100: TestMachine) -> None:
    work = Work(a100.folder)
    with leader_of_a_terminal(["nohup", *work.line], a100) as (pid, terminal):
        workload = work.begin()
        os.close(terminal)
        wait_until(lambda: hung_up(pid))
        assert a100.one_running()["pid"] == workload
        work.finish()
        assert code_of(pid) == 7
    assert work.heard == []


def test_a_command_in_a_session_of_its_own_is_told_of_the_lost_terminal_and_of_ctrl_c(a100: TestMachine) -> None:
    """The terminal knows nothing of it, and who presses Ctrl-C means it."""
    work = Work(a100.folder, ("setsid",))
    with leader_of_a_terminal(work.line, a100) as (pid, terminal):
        work.begin()
        os.write(terminal, b"\x03")
        wait_until(lambda: work.heard == ["SIGINT"])
        os.write(terminal, b"\x1c")
        wait_until(lambda: work.heard == ["SIGINT", "SIGQUIT"])
        os.close(terminal)
        wait_until(lambda: work.heard == ["SIGINT", "SIGQUIT", "SIGHUP"])
        work.finish()
        assert code_of(pid) == 7


def test_a_waiting_request_leaves_the_queue_with_its_terminal(a100: TestMachine) -> None:
    a100.hold("--gpus", "1")
    with leader_of_a_terminal([*TRANCHE, "run", "-q", "--gpus", "1", "--", "true"], a100) as (pid, terminal):
        wait_until(lambda: len(a100.json("ps")["waiters"]) == 1)
        os.close(terminal)
        assert code_of(pid) == 128 + signal.SIGHUP
    assert a100.json("ps")["waiters"] == []


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_the_end_of_tmux_ends_the_command(a100: TestMachine) -> None:
    work = Work(a100.folder)
    tmux = ["tmux", "-S", str(a100.folder / "tmux"), "-f", "/dev/null"]
    environment = {**a100.environment, "TERM": "xterm"}
    subprocess.run([*tmux, "new-session", "-d", *work.line], env=environment, check=True, timeout=60)
    work.begin()
    subprocess.run([*tmux, "kill-server"], env=environment, check=True, timeout=60)
    wait_until(lambda: "SIGHUP" in work.heard)
    work.finish()
    wait_until(lambda: a100.json("ps")["allocations"] == [])
