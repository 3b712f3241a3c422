"""The cluster's own processes: started detached in a cgroup, found again by their pid file, ended by pid."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.cgroups import Cgroup
from cluster.errors import ClusterError

_START_SECONDS = 30.0
# The process writes down its own id and joins its cgroup before it becomes the program: there is no instant at which the program
# runs unnoticed.
_SCRIPT = """
pid_file=$1; shift
while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift
echo $$ > "$pid_file.new" && mv "$pid_file.new" "$pid_file" || exit 1
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """One long-running process: its pid file is `folder/<name>.pid`, its output goes to `folder/<name>.log`."""

    name: str
    folder: Path
    cgroup: Cgroup

    @property
    def log(self) -> Path:
        """Where its output goes; a restart appends."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """Its process id while it runs. A process of that id outside the unit's cgroup is another's."""
        try:
            pid = int(self._pid_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if self.cgroup.contains(pid) else None

    @property
    def _pid_file(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Start it unless it runs; its process id.

        Raises:
            ClusterError: it did not start.
        """
        if (running := self.pid) is not None:
            return running
        self.folder.mkdir(parents=True, exist_ok=True)
        self._pid_file.unlink(missing_ok=True)
        wrapped = ["setsid", "--fork", "sh", "-c", _SCRIPT, self.name, str(self._pid_file)]
        with self.log.open("ab") as log:
            subprocess.run(
                [*wrapped, *self.cgroup.process_files(), "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=None if environment is None else dict(environment),
                cwd="/",
                check=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._pid_file.exists():
            if time.monotonic() > deadline:
                raise ClusterError(f"{self.name} did not start:\n{self.log_end()}")
            time.sleep(0.01)
        return int(self._pid_file.read_text())

    def send(self, number: signal.Signals) -> None:
        """Send a signal.

        Raises:
            ClusterError: it does not run.
        """
        pid = self.pid
        if pid is None:
            raise ClusterError(f"{self.name} does not run")
        os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL it, and wait until it is gone; nothing happens when it does not run."""
        self._end(signal.SIGKILL, 10.0)

    def stop(self, grace: float = 20.0) -> None:
        """SIGTERM it, and SIGKILL it after `grace` seconds; nothing happens when it does not run."""
        if not self._end(signal.SIGTERM, grace):
            self.kill()

    def log_end(self, characters: int = 2000) -> str:
        """The last of its output."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def _end(self, number: signal.Signals, seconds: float) -> bool:
        pid = self.pid
        return pid is None or end_process(pid, number, seconds)


def end_process(pid: int, number: signal.Signals, seconds: float) -> bool:
    """Send a process a signal; whether it has ended within that time.

    A pidfd tells of the end of the last thread: only then is a port free for the next process.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        os.kill(pid, number)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    except ProcessLookupError:
        return True
    finally:
        os.close(descriptor)
