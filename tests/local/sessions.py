"""Shells that lead a session, in which `tranche` runs as root or as a user of the service."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.machines import TRANCHE, TestMachine, wait_until
from tests.support.in_process import DROP, NOBODY
from tranche.node.processes.processes import children_of

HALF = "--mig-profile 3g.20gb"
READABLE_PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")


def dropped(uid: int) -> list[str]:
    """`tranche` as that user, who may be unable to execute root's Python: the holder then runs in the system's."""
    program = DROP.replace(
        "import tranche.cli",
        f"sys.executable = {READABLE_PYTHON!r}\nimport tranche.cli.detached, tranche.cli.hold, tranche.cli.job, tranche.cli",
        1,
    )
    return [sys.executable, "-c", program, str(uid)]


class Session:
    """A shell that leads a session. `tranche` runs in it as root or as a user of the service."""

    def __init__(self, machine: TestMachine, tranche: list[str]) -> None:
        self.machine, self.tranche, self.of_user = machine, shlex.join(tranche), tranche != [*TRANCHE]
        self.shell = subprocess.Popen(
            ["bash"],
            env=machine.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd="/",
        )
        self._streams = (self.shell.stdin, self.shell.stdout)

    def begin(self, line: str) -> None:
        """Have the shell run a line."""
        assert self.shell.stdin is not None
        self.shell.stdin.write(f'{line}\necho "=$?="\n')
        self.shell.stdin.flush()

    def finish(self) -> tuple[int, str]:
        """The exit code of the line, and what it printed."""
        assert self.shell.stdout is not None
        found: list[str] = []
        for line in self.shell.stdout:
            if line.startswith("=") and line.endswith("=\n"):
                return int(line.strip("=\n")), "".join(found)
            found.append(line)
        raise AssertionError(f"the shell ended: {found}")

    def do(self, line: str) -> str:
        """Run a line, which must succeed; what it printed."""
        self.begin(line)
        code, text = self.finish()
        assert code == 0, text
        return text

    def hold(self, request: str = HALF, *, tranche: str = "") -> dict[str, Any]:
        """Hold a share in this session; its allocation."""
        before = {each["id"] for each in shares(self.machine)}
        id = self.do(f'eval "$({tranche or self.tranche} hold {request})" && echo $TRANCHE_ALLOCATION').strip()
        (found,) = (each for each in shares(self.machine) if each["id"] == id)
        assert id not in before
        return found

    def program(self) -> int:
        """Start a program of the user in the session; its pid."""
        as_user = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups " if self.of_user else ""
        pid = int(self.do(f"{as_user}sleep 600 >/dev/null & echo $!"))
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        return pid

    def caller(self) -> int:
        """The pid of the `tranche hold` that the shell runs: its youngest descendant that is not the launcher."""
        (caller,) = children_of(self.shell.pid)
        return caller.pid

    def end(self) -> None:
        """End the shell as an exit does."""
        for each in self._streams:
            if each is not None:
                with suppress(BrokenPipeError):
                    each.close()
        with suppress(subprocess.TimeoutExpired):
            self.shell.wait(10)
        self.shell.kill()
        self.shell.wait()


OpenSession = Callable[[], Session]


def shares(machine: TestMachine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = machine.json("ps")["allocations"]
    return found


def waiters(machine: TestMachine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = machine.json("ps")["waiters"]
    return found


@contextmanager
def opening(machine: TestMachine, tranche: list[str]) -> Iterator[OpenSession]:
    with ExitStack() as stack:

        def open_session() -> Session:
            session = Session(machine, tranche)
            stack.callback(session.end)
            return session

        yield open_session


def ended(machine: TestMachine) -> bool:
    return shares(machine) == []
