"""The cluster's own processes: started detached in a cgroup, found again by their pid file, ended by pid.

A cluster has a cgroup subtree of its own in every hierarchy: whatever is in it belongs to the cluster and can be ended by it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cluster.errors import ClusterError, UnsuitableMachine
from cluster.waiting import wait_for
from tranche.hardware.process_stat import process_stat

# The process writes down its own id and joins its cgroup before it becomes the program: there is no instant at which the program
# runs unnoticed.
_SCRIPT = """
pid_file=$1; shift
while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift
echo $$ > "$pid_file.new" && mv "$pid_file.new" "$pid_file" || exit 1
exec "$@"
"""
ROOT = Path("/sys/fs/cgroup")
_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")
_KILL_SECONDS = 30.0
_ENVIRONMENT = {"GOGC": "400"}
"""For Kubernetes' programs, which are Go's: with more memory they collect garbage less often, a twentieth of their time."""


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
                env={**(os.environ if environment is None else environment), **_ENVIRONMENT},
                cwd="/",
                check=True,
            )
        wait_for(f"{self.name} starts", self._pid_file.exists, timeout=30, period=0.01, explain=self.log_end)
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


def is_unified() -> bool:
    """Whether the machine has cgroup v2 alone."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """Where the hierarchies are mounted: one on cgroup v2, one for each group of controllers on v1."""
    if is_unified():
        return [ROOT]
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(mount[1]) for mount in mounts if mount[2] in ("cgroup", "cgroup2") and Path(mount[1]).parent == ROOT]


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One path in every hierarchy, such as `tranche-dev/p4d`."""

    path: str

    def child(self, name: str) -> Cgroup:
        return Cgroup(f"{self.path}/{name}")

    def create(self) -> None:
        """Make it, with every controller usable inside; it may exist.

        A new cpuset of cgroup v1 allows no processor and no memory node: it is given its parent's.
        """
        for hierarchy in hierarchies():
            folder = hierarchy
            for part in Path(self.path).parts:
                if is_unified():
                    _pass_controllers_on(folder)
                folder /= part
                folder.mkdir(exist_ok=True)
                for name in _CPUSET_FILES:
                    file = folder / name
                    if not is_unified() and file.exists() and not file.read_text().strip():
                        file.write_text((folder.parent / name).read_text())

    def process_files(self) -> list[str]:
        """The files to write a process id to, to move the process here."""
        return [str(hierarchy / self.path / "cgroup.procs") for hierarchy in hierarchies()]

    def processes(self) -> set[int]:
        pids: set[int] = set()
        for hierarchy in hierarchies():
            for folder, _, files in os.walk(hierarchy / self.path):
                if "cgroup.procs" in files:
                    pids |= _pids_in(Path(folder) / "cgroup.procs")
        return pids

    def contains(self, pid: int) -> bool:
        """Whether a process is here or below. False for one that has ended, also while nobody has reaped it."""
        try:
            membership = Path(f"/proc/{pid}/cgroup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        if (stat := process_stat(pid)) is None or not stat.lives:
            return False
        paths = (line.split(":", 2)[2] for line in membership.splitlines())
        return any(path == f"/{self.path}" or path.startswith(f"/{self.path}/") for path in paths)

    def running(self) -> set[int]:
        """Process ids here and below, without those that have ended and only wait to be reaped."""
        return {pid for pid in self.processes() if self.contains(pid)}

    def kill(self) -> None:
        """End every process here and below at once, and wait until they are gone.

        Raises:
            ClusterError: a process does not go.
        """

        def ended() -> bool:
            pids = self.running()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        wait_for(f"{self.path} ends", ended, timeout=_KILL_SECONDS, period=0.05, explain=lambda: str(self.running()))

    def remove(self) -> None:
        """Remove it and what is below; nothing may run in it.

        Raises:
            ClusterError: a cgroup stays in use.
        """
        for folder in (hierarchy / self.path for hierarchy in hierarchies()):
            wait_for(f"{folder} is removed", partial(_removed, folder), timeout=_KILL_SECONDS, period=0.05)


def _removed(folder: Path) -> bool:
    for inner, _, _ in os.walk(folder, topdown=False):
        try:
            os.rmdir(inner)
        except FileNotFoundError:
            continue
        except OSError:  # a process that has just been killed still counts for an instant
            return False
    return not folder.exists()


def _pids_in(file: Path) -> set[int]:
    try:
        return {int(line) for line in file.read_text().split()}
    except (FileNotFoundError, OSError):
        return set()


def _pass_controllers_on(folder: Path) -> None:
    available = (folder / "cgroup.controllers").read_text().split()
    try:
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in available))
    except OSError as error:
        raise UnsuitableMachine(f"{folder} does not pass its controllers on: {error.strerror}") from error
