"""A cgroup subtree of the cluster's own, in every hierarchy: whatever is in it belongs to the cluster and can be ended by it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError, UnsuitableMachine

ROOT = Path("/sys/fs/cgroup")
_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")
_KILL_SECONDS = 30.0


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
        """A cgroup inside this one."""
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
        """Process ids here and below."""
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
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        paths = (line.split(":", 2)[2] for line in membership.splitlines())
        return state != "Z" and any(path == f"/{self.path}" or path.startswith(f"/{self.path}/") for path in paths)

    def running(self) -> set[int]:
        """Process ids here and below, without those that have ended and only wait to be reaped."""
        return {pid for pid in self.processes() if self.contains(pid)}

    def kill(self) -> None:
        """End every process here and below at once, and wait until they are gone.

        Raises:
            ClusterError: a process does not go.
        """
        deadline = time.monotonic() + _KILL_SECONDS
        while pids := self.running():
            if time.monotonic() > deadline:
                raise ClusterError(f"processes {sorted(pids)} of {self.path} do not end")
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)

    def remove(self) -> None:
        """Remove it and what is below; nothing may run in it.

        Raises:
            ClusterError: a cgroup stays in use.
        """
        deadline = time.monotonic() + _KILL_SECONDS
        for hierarchy in hierarchies():
            while not _removed(hierarchy / self.path):
                if time.monotonic() > deadline:
                    raise ClusterError(f"{hierarchy / self.path} cannot be removed")
                time.sleep(0.05)


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
