"""Running a child to its end, whichever thread the kernel hands this process's signals to."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.machines import TRANCHE, machine_in, wait_until
from tests.node.processes import Child, in_child, isolated
from tranche.local.child import run_child

TIMES = 50
# A thread that no Python knows, with every signal unblocked, as a library starts one when it is loaded.
_LIBRARY = """
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
static void *idle(void *unused)
{
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, 0);
    for (;;)
        pause();
}
__attribute__((constructor)) static void start(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, idle, 0);
}
"""


@pytest.fixture(scope="module")
def thread_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that starts a thread when it is loaded."""
    folder = tmp_path_factory.mktemp("library")
    source, library = folder / "thread.c", folder / "thread.so"
    source.write_text(_LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-pthread"], check=True)
    return library


@contextlib.contextmanager
def idle_threads() -> Iterator[None]:
    """Threads with every signal unblocked, which the kernel may choose for this process's signals."""
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


def run(*command: str, started: Callable[[int], None] = lambda pid: None) -> int:
    return run_child(f"/bin/{command[0]}", command, os.environ, started)


def till_it_ended(pid: int) -> None:
    """The child ends before anybody waits for its end: the kernel gives SIGCHLD to whoever takes it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@isolated
def test_the_end_of_a_child_is_seen_beside_threads_that_take_signals() -> None:
    with idle_threads():
        codes = [run("sh", "-c", f"exit {number}", started=till_it_ended) for number in range(TIMES)]
    assert codes == list(range(TIMES))


def test_the_end_of_a_child_is_seen_beside_a_thread_of_a_library(thread_library: Path) -> None:
    def look() -> list[int]:
        ctypes.CDLL(str(thread_library))
        return [run("true", started=till_it_ended) for _ in range(TIMES)]

    assert in_child(look) == [0] * TIMES


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on_beside_a_thread_of_a_library(
    thread_library: Path, tmp_path: Path, number: signal.Signals
) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'exit 7' {number.name.removeprefix('SIG')}; : > {ready}; while :; do sleep 0.01; done"

    def work() -> int:
        ctypes.CDLL(str(thread_library))
        return run("sh", "-c", script)

    child = Child(work)
    wait_until(ready.exists)
    os.kill(child.pid, number)
    assert child.result() == 7


@isolated
def test_a_signal_that_another_thread_took_is_passed_on() -> None:
    with idle_threads():
        taker = next(each for each in threading.enumerate() if each is not threading.main_thread())

        def started(pid: int) -> None:
            assert taker.ident is not None
            signal.pthread_kill(taker.ident, signal.SIGTERM)

        assert run("sleep", "600", started=started) == 128 + signal.SIGTERM


@isolated
def test_a_caller_that_ignores_sigchld_gets_the_exit_code() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    assert run("sh", "-c", "exit 5") == 5
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN


@isolated
def test_everything_is_as_it_was_afterwards() -> None:
    def look() -> tuple[object, ...]:
        handlers = [signal.getsignal(number) for number in signal.valid_signals()]
        return (
            handlers,
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            os.listdir("/proc/self/fd"),
            threading.enumerate(),
        )

    before = look()
    assert run("true") == 0
    with pytest.raises(OSError, match="No such file"):
        run("no-such-file")
    with pytest.raises(ZeroDivisionError):
        run("sleep", "600", started=lambda pid: print(1 // 0))
    assert look() == before


@isolated
def test_a_signal_that_comes_when_the_child_has_ended_was_meant_for_the_child() -> None:
    def started(pid: int) -> None:
        till_it_ended(pid)
        os.kill(os.getpid(), signal.SIGTERM)

    assert run("sh", "-c", "exit 6", started=started) == 6


@dataclass(frozen=True, slots=True)
class Job:
    """A shell with one job in the foreground; `terminal` is what a person types into, `pid` the job and its process group."""

    shell: int
    terminal: int
    pid: int


def test_the_terminal_stops_the_command_and_tranche_alike(tmp_path: Path) -> None:
    """Ctrl-Z stops both, `fg` continues both, and Ctrl-C reaches the command once."""
    told, ready = tmp_path / "told", tmp_path / "ready"
    # A shell will not do: it cannot be stopped while a child of its own is stopped between vfork and exec. Nor will a handler of
    # Python's and pause(): a signal that comes right before the pause is heeded after it, and so never.
    script = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "open(sys.argv[2] + '.tmp', 'w').write(str(os.getpid()))\n"
        "os.rename(sys.argv[2] + '.tmp', sys.argv[2])\n"
        "signal.sigwait({signal.SIGINT})\n"
        "open(sys.argv[1], 'a').write('told\\n')\n"
        "os._exit(4)\n"
    )
    with machine_in(tmp_path, "A100-40GB") as machine:
        work = [sys.executable, "-c", script, str(told), str(ready)]
        command = [*TRANCHE, "run", "-q", "--mig-profile", "1g.5gb", "--", *work]
        with shell_with_job(command, machine.environment) as job:
            wait_until(ready.exists)
            workload = int(ready.read_text())
            os.write(job.terminal, b"\x1a")
            wait_until(lambda: (state(job.pid), state(workload)) == ("T", "T"))
            os.killpg(job.pid, signal.SIGCONT)
            wait_until(lambda: "T" not in (state(job.pid), state(workload)))
            os.write(job.terminal, b"\x03")
            ended: list[int] = []
            wait_until(lambda: (doing(job.pid), doing(workload), has_ended(job.shell, ended))[2])
            assert ended == [4]
        assert told.read_text() == "told\n"
        assert machine.json("ps")["allocations"] == []


@contextlib.contextmanager
def shell_with_job(command: list[str], environment: dict[str, str]) -> Iterator[Job]:
    """The command as the foreground job of a shell on a terminal of its own: in a process group that has a parent outside."""
    told, tell = os.pipe()
    shell, terminal = pty.fork()
    if shell == 0:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.execvpe(command[0], command, environment)
        os.write(tell, b"%d" % job)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]) & 0xFF)
    try:
        yield Job(shell, terminal, int(os.read(told, 16)))
    finally:
        # Whatever is left hangs up with its terminal.
        for descriptor in (terminal, told, tell):
            os.close(descriptor)


def state(pid: int) -> str:
    """The state letter of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def doing(pid: int) -> str:
    """What the process does, for people."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return " ".join(line for line in status.splitlines() if line.startswith(("Name", "State", "Sig", "Shd")))
    return "it is gone"


def has_ended(pid: int, codes: list[int]) -> bool:
    """Whether that child has ended, with its exit code in `codes` then."""
    if not codes:
        found, status = os.waitpid(pid, os.WNOHANG)
        codes.extend([os.waitstatus_to_exitcode(status)] if found else [])
    return bool(codes)


def test_a_run_ends_beside_a_thread_of_a_library(thread_library: Path, tmp_path: Path) -> None:
    with machine_in(tmp_path, "A100-40GB") as machine:
        environment = {**machine.environment, "LD_PRELOAD": str(thread_library)}
        for code in (0, 3, 0, 4, 0, 5):
            done = subprocess.run(
                [*TRANCHE, "run", "-q", "--mig-profile", "1g.5gb", "--", "sh", "-c", f"exit {code}"],
                env=environment,
                check=False,
                timeout=120,
            )
            assert done.returncode == code
