"""A simulated machine under a test's own folder, and the real `tranche` command on it, as processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.last_look import last_look
from tests.support import in_process
from tranche.hardware.process_stat import process_environment, process_ids
from tranche.node.store.register import user_name
from tranche_simulator.build import cache_directory, ensure_built
from tranche_simulator.machine import SimulatedMachine

TRANCHE = in_process.TRANCHE
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a command as another user")
_DEADLINE_SECONDS = 120.0
_LEFT_OUT = ("TRANCHE_SIMULATE", "TRANCHE_SIM_STATE", "TRANCHE_STATE_DIR", "NVIDIA_VISIBLE_DEVICES", "NO_COLOR")

Completed = subprocess.CompletedProcess[str]


@dataclass(slots=True)
class Workload:
    """A command that `tranche run` holds a share for; `pid` is the workload's own."""

    process: subprocess.Popen[str]
    pid: int


@dataclass(slots=True)
class TestMachine:
    """One simulated machine with its state folder. Every command has a process of its own."""

    __test__ = False

    machine: SimulatedMachine
    folder: Path
    cache: Path = field(default_factory=cache_directory)
    _started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def state_dir(self) -> Path:
        """Where the ledger is."""
        return self.folder / "state"

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.state_dir / "ledger.db"

    @property
    def environment(self) -> dict[str, str]:
        """What makes `tranche` and every NVML program meet this machine."""
        kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        built = ensure_built(self.cache)
        return {
            **kept,
            "LD_LIBRARY_PATH": str(built.library.parent),
            "PATH": f"{built.nvidia_smi.parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "TRANCHE_SIM_STATE": str(self.machine.state),
            "TRANCHE_STATE_DIR": str(self.state_dir),
            "TRANCHE_CACHE_DIR": str(self.cache),
        }

    def tranche(self, *arguments: str, code: int | None = 0, as_nobody: bool = False, **variables: str) -> Completed:
        """Run `tranche`; its exit code must be `code` (None: any)."""
        environment = {**self.environment, **variables}
        # Python reads its variables at its start; a fork would share SQLite's view of a ledger that the test itself has open.
        anew = (
            not in_process.may_fork()
            or any(name.startswith(("PYTHON", "LC_")) for name in variables)
            or self._open_in_this_process()
        )
        if anew and not as_nobody:
            done = in_process.run_anew(arguments, environment, seconds=_DEADLINE_SECONDS)
        else:
            user = in_process.NOBODY if as_nobody else None
            done = in_process.run(arguments, environment, seconds=_DEADLINE_SECONDS, user=user)
        return _completed(arguments, done, code)

    def _open_in_this_process(self) -> bool:
        """Whether the test has a file of this machine open."""
        mine = f"{self.folder.resolve()}/"
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # one of them is that of the listing
                if os.readlink(f"/proc/self/fd/{descriptor}").startswith(mine):
                    return True
        return False

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """The JSON document that `tranche ... -o json` prints."""
        document: dict[str, Any] = json.loads(self.tranche(*arguments, "-o", "json", code=code).stdout)
        assert document["apiVersion"] == "tranche.dev/v1"
        return document

    def smi(self, *arguments: str) -> str:
        """What nvidia-smi says; it must succeed."""
        done = subprocess.run(
            [str(ensure_built().nvidia_smi), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def cut_by_hand(self, gpu: int, *profiles: str) -> None:
        """Cut a GPU as another tool would: instances that Tranche did not make."""
        self.smi("-i", str(gpu), "-mig", "1")
        if not self.machine.gpus()[gpu].mig_current:
            self.smi("-i", str(gpu), "--gpu-reset")
        if profiles:
            self.smi("mig", "-i", str(gpu), "-cgi", ",".join(profiles), "-C")

    def start(
        self, *arguments: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """Start `tranche`, to be ended with the test at the latest."""
        # What forks by itself gets a new interpreter.
        anew = arguments[0] == "serve" or self._open_in_this_process()
        process = in_process.start(arguments, self.environment, anew=anew, stdin=stdin, stdout=stdout)
        self._started.append(process)
        return process

    def hold(self, *request: str, script: str = "exec sleep 600") -> Workload:
        """Run a workload in a share, and return when it runs."""
        ready = self.folder / f"ready-{len(self._started)}"
        tell = f'echo $$ > "{ready}.tmp"; mv "{ready}.tmp" "{ready}"'
        process = self.start("run", *request, "-q", "--", "sh", "-c", f"{tell}; {script}")
        wait_until(ready.exists, process)
        return Workload(process, int(ready.read_text()))

    def wait_in_queue(self, *request: str) -> subprocess.Popen[str]:
        """Start a request that has to wait, and return when it is in the queue."""
        before = len(self.json("ps")["waiters"])
        process = self.start("run", *request, "-q", "--", "sleep", "600")
        wait_until(lambda: len(self.json("ps")["waiters"]) > before, process)
        return process

    def running(self) -> list[dict[str, Any]]:
        """The shares of commands that run, each with its pid, which is written down a moment after the command began."""
        found: list[dict[str, Any]] = []

        def known() -> bool:
            shares = self.json("ps")["allocations"]
            found[:] = [each for each in shares if each["phase"] == "active"]
            return all(each["pid"] for each in found)

        wait_until(known)
        return found

    def one_running(self) -> dict[str, Any]:
        """The share of the one command that runs, once it does. A detached run's share comes after its command has returned."""
        found: list[dict[str, Any]] = []

        def known() -> bool:
            found[:] = self.running()
            return len(found) == 1

        wait_until(known)
        return found[0]

    def changes(self) -> tuple[object, ...]:
        """A digest of the machine: equal before and after when, and only when, nobody even tried to change it."""
        return (self.machine.gpus(), tuple(self.machine.change_calls().items()))

    def end_commands(self) -> None:
        """Tell what start() started to end, and wait for that; others that run on the machine stay."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)

    def end(self) -> None:
        """End what start() started, and whatever of this machine outlives it, such as a workload or an MPS daemon."""
        self.end_commands()
        kill_all_with(f"TRANCHE_SIM_STATE={self.machine.state.absolute()}")
        for process in self._started:
            process.kill()
            process.wait()
            # Not read to its end: a process that no longer has this machine's environment may hold the pipe open.
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def kill_all_with(variable: str) -> None:
    """Kill every process of this user that was started with that variable, such as those of a machine with its state file."""
    mine = variable.encode()
    for pid in process_ids():
        # A process may end meanwhile, or be somebody else's.
        with contextlib.suppress(OSError):
            if pid == os.getpid() or mine not in process_environment(pid):
                continue
            process = os.pidfd_open(pid)
            try:
                if mine in process_environment(pid):  # another one may have its pid by now
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)


def run_without_driver(*arguments: str, code: int = 0) -> Completed:
    """Run `tranche` where the dynamic linker finds no NVML, which is so unless the host itself has a driver."""
    kept = {name: value for name, value in os.environ.items() if name not in (*_LEFT_OUT, "LD_LIBRARY_PATH")}
    return _completed(arguments, in_process.run(arguments, kept, seconds=_DEADLINE_SECONDS), code)


def _completed(arguments: Sequence[str], done: in_process.Outcome, code: int | None) -> Completed:
    words = " ".join(arguments)
    if done.code is None:
        pytest.fail(f"`tranche {words}` does not end; it said: {done.stdout!r} {done.stderr!r}")
    assert "Traceback" not in done.stderr, done.stderr
    assert code is None or done.code == code, (
        f"`tranche {words}` ended with exit code {done.code}\n{done.stdout}\n{done.stderr}"
    )
    return Completed(arguments, done.code, done.stdout, done.stderr)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Return when the condition holds; fail when the process ends first, or after two minutes, and say what it saw last.

    A condition that runs a command is looked at less often: else it would keep the processor from what is waited for.
    """
    asked = time.monotonic()
    deadline = asked + _DEADLINE_SECONDS
    while not condition():
        if process is not None and process.poll() is not None and not condition():
            said = process.communicate()[1]
            raise AssertionError(f"the process ended with {process.returncode}: {said}\n{last_look(condition)}")
        now = time.monotonic()
        if now >= deadline:
            raise AssertionError(f"this did not come true in {_DEADLINE_SECONDS:g} s:\n{last_look(condition)}")
        time.sleep(max(0.02, 2 * (now - asked)))
        asked = time.monotonic()


def remove_under_writers(folder: Path) -> None:
    """Remove a folder into which others write meanwhile, until it is gone."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def lose_ledger(machine: TestMachine) -> None:
    """Delete the ledger, but not the rest of the state folder."""
    for path in machine.state_dir.glob("ledger.db*"):
        path.unlink()


@contextmanager
def readable_folder() -> Iterator[Path]:
    """A folder that other users may read, which pytest's own are not; with a copy of the compiled simulator as its cache."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        built = ensure_built().directory
        shutil.copytree(built, folder / "cache" / "simulator" / built.name)
        yield folder


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets, which pytest's own do not when several processes test."""
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as name:
        yield Path(name)


@contextmanager
def machine_in(folder: Path, *boards: str, machine_type: str = "") -> Iterator[TestMachine]:
    """A new machine of those boards, or of that type, in the folder; operations take no time."""
    made = SimulatedMachine.create("machine", machine_type=machine_type, boards=boards, root=folder, time_scale=0)
    machine = TestMachine(made, folder)
    try:
        yield machine
    finally:
        machine.end()


def scrub(text: str, ids: Sequence[str]) -> str:
    """The text with allocation ids replaced by names of the same length, in the order given, and ages by `0s`.

    What `TestMachine.hold` runs is cut short where holders are named, and its file and user are replaced there.
    """
    for number, each in enumerate(ids):
        text = text.replace(each, f"{'abcdefgh'[number] * len(each)}")
    text = re.sub(r"sh -c 'echo \$\$ > \"\S*… \(\w+\)", lambda found: "COMMAND (USER)".ljust(len(found[0])), text)
    text = text.replace(f"({user_name(os.getuid())})", "(USER)")
    return re.sub(r"\b(?:\d+m)?\d+s\b", "0s", text)
