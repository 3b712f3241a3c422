"""A control daemon of MPS on a simulated machine, and what one types into it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.machines import wait_until
from tests.simulator.machines import SIMULATOR_VARIABLES
from tests.simulator.smi_runner import Answer
from tranche_simulator import SimulatedMachine


@dataclass(frozen=True, slots=True)
class MpsBench:
    """Pipe and log folder of a daemon. `variables` are in its environment, and in that of no other.

    `callers` are this process's own connections to it, which end with the bench.
    """

    machine: SimulatedMachine
    folder: Path
    variables: dict[str, str]
    callers: list[socket.socket] = field(default_factory=list)

    @property
    def pipe(self) -> Path:
        return self.folder / "pipe"

    def environment(self) -> dict[str, str]:
        """That of a program which calls the daemon."""
        kept = {name: value for name, value in os.environ.items() if name not in SIMULATOR_VARIABLES}
        folders = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.folder / "log"),
        }
        return kept | self.machine.environment() | folders

    def path(self) -> str:
        """The program that the machine's PATH gives."""
        found = shutil.which("nvidia-cuda-mps-control", path=self.environment()["PATH"])
        assert found is not None
        return found

    def foreground(self) -> subprocess.Popen[str]:
        """The daemon as a child of this process."""
        return subprocess.Popen([self.path(), "-f"], env=self.environment(), stderr=subprocess.PIPE, text=True)

    def program(self, *arguments: str, typed: str = "", **variables: str) -> Answer:
        """Runs nvidia-cuda-mps-control with this on its standard input."""
        done = subprocess.run(
            [self.path(), *arguments],
            input=typed,
            env=self.environment() | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
        )
        return Answer(done.returncode, done.stdout)

    def start(self, *flags: str, user: int | None = None) -> None:
        """Starts the daemon in the background, as that user if one is given."""
        environment = self.environment() | self.variables
        command = [self.path(), "-d", *flags]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, user=user, check=False)
        assert (done.returncode, done.stdout) == (0, "")

    def typing(self, command: str) -> subprocess.Popen[str]:
        """A terminal that has this command carried out, which may take its time."""
        return subprocess.Popen(
            [self.path(), command], env=self.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, command: str) -> str:
        """What the daemon answers to a command, which may be its refusal: the exit code is zero all the same."""
        answer = self.program(typed=f"{command}\n")
        assert answer.code == 0, answer
        return answer.text

    def pid(self) -> int:
        return int((self.pipe / "nvidia-cuda-mps-control.pid").read_text())

    def servers(self) -> list[int]:
        return [int(word) for word in self("get_server_list").split()]

    def server(self, uid: int | None = None) -> int:
        """A server of this account or another that is ready."""
        self(f"start_server -uid {os.geteuid() if uid is None else uid}")
        wait_until(lambda: any("ACTIVE" in self(f"get_server_status {pid}") for pid in self.servers()))
        (pid,) = self.servers()
        return pid

    def log(self, name: str) -> str:
        """control.log or server.log without the dates: the lines' writers and texts."""
        text = (self.folder / "log" / name).read_text()
        return "".join(line[len("[2026-11-22 03:07:44.404 ") :] for line in text.splitlines(keepends=True))

    def end(self) -> None:
        """Ends the daemon and its servers, whatever state they are in."""
        for caller in self.callers:
            caller.close()
        with suppress(OSError, ValueError):
            children = subprocess.run(
                ["pgrep", "-P", str(self.pid())], stdout=subprocess.PIPE, text=True, check=False
            ).stdout.split()
            for pid in (self.pid(), *map(int, children)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def mps_daemon(machine: SimulatedMachine, *flags: str, start: bool = True, **variables: str) -> Iterator[MpsBench]:
    """A daemon in a folder with a short name, as a socket's path must be, that ends with the block."""
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        os.chmod(folder, 0o755)
        daemon = MpsBench(machine, Path(folder), variables)
        try:
            if start:
                daemon.start(*flags)
            yield daemon
        finally:
            daemon.end()
