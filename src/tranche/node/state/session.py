"""Where a machine's state is kept, and whether the processes named in it still live."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tranche.core.errors import LedgerUnavailable
from tranche.hardware.process_stat import process_stat

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OWN_FOLDERS = frozenset({"locks", "simulator", "mps", "timeslices", "lost+found"})
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel


class StateFolder(NamedTuple):
    """The files of one machine's state folder."""

    state_dir: Path

    def refuse_shared(self) -> None:
        """LedgerUnavailable when the folder is not Tranche's alone: one of everybody's, such as /var/lib or /tmp."""
        try:
            with os.scandir(self.state_dir) as entries:
                others = sorted(each.name for each in entries if each.is_dir() and each.name not in _OWN_FOLDERS)
        except OSError:
            return  # not there yet; or whoever opens the ledger says what stands in the way
        if others or (self.state_dir.stat().st_mode & 0o002):
            found = f"it holds {', '.join(others[:3])}" if others else "everybody may write it"
            raise LedgerUnavailable(
                f"{self.state_dir} is no folder of Tranche's own: {found}",
                hint="an agent keeps its state folder to itself: name one that holds nothing else",
            )

    def keep_private(self) -> None:
        """Let nobody but the owner into the folder; LedgerUnavailable when it is everybody's, or belongs to somebody else."""
        self.refuse_shared()
        try:
            self.state_dir.chmod(0o700)
        except OSError as error:
            raise LedgerUnavailable(f"cannot change who may read {self.state_dir}: {error.strerror}") from error

    @property
    def writable(self) -> bool:
        """Whether this user may write what is there, or make it."""
        nearest = next(path for path in (self.state_dir, *self.state_dir.absolute().parents) if os.path.exists(path))
        wanted = [nearest] + [path for path in (self.ledger,) if os.path.exists(path)]
        return all(os.access(path, os.W_OK, effective_ids=True) for path in wanted)

    @property
    def ledger(self) -> Path:
        """The ledger's database."""
        return self.state_dir / "ledger.db"

    @property
    def decision_lock(self) -> Path:
        """Held while a decision is made."""
        return self.state_dir / "locks" / "decision"

    @property
    def gpu_locks(self) -> Path:
        """The folder of the locks that are held while a plan works on a GPU."""
        return self.state_dir / "locks" / "gpus"

    @property
    def agent_lock(self) -> Path:
        """Held by the one agent that serves the machine; in it the agent's process id."""
        return self.state_dir / "locks" / "agent"

    @property
    def manager_name(self) -> Path:
        """The name of the machine's MIG manager, which outlives its restarts."""
        return self.state_dir / "mig-manager"

    @property
    def mps(self) -> Path:
        """The folder of the MPS daemons: their sockets, logs and records. The names of sockets must be short."""
        return self.state_dir / "mps"

    @property
    def memory_groups(self) -> Path:
        """The folder of notes on the control groups that limit the memory of shares."""
        return self.state_dir / "groups"

    @property
    def limit_trial(self) -> Path:
        """What trying the driver's memory limits has shown."""
        return self.state_dir / "memory-limits.json"

    @property
    def timeslices(self) -> Path:
        """The folder of what is wanted and what was set of the lengths of time slices."""
        return self.state_dir / "timeslices"

    @property
    def known_gpus(self) -> Path:
        """Which GPU was seen at which index."""
        return self.state_dir / "gpus.json"

    def session(self, name: str) -> Path:
        """Held while the process of that session lives."""
        return self.state_dir / "locks" / "sessions" / name

    def sessions(self) -> list[Path]:
        """The lock files of all sessions, living and dead; what else lies there is nobody's."""
        folder = self.state_dir / "locks" / "sessions"
        return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []

    def allocation(self, allocation_id: str) -> Path:
        """Held by `tranche run` and, inherited, by its workload."""
        return self.state_dir / "locks" / "allocations" / allocation_id

    def waiter(self, waiter_id: str) -> Path:
        """Held while a request waits."""
        return self.state_dir / "locks" / "waiters" / waiter_id

    def waiters(self) -> set[str]:
        """The ids that have files among the waiters, living and dead; what else lies there is nobody's."""
        folder = self.state_dir / "locks" / "waiters"
        found = folder.iterdir() if folder.is_dir() else ()
        return {path.stem for path in found if path.suffix == ".bell" or path.is_file()}

    def wakeup_pipe(self, waiter_id: str) -> Path:
        """The socket on which a waiter is told that its turn may have come."""
        return self.state_dir / "locks" / "waiters" / f"{waiter_id}.bell"


def boot_id() -> str:
    """A word that changes with each start of the machine; "" where the kernel gives none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def process_start_time(pid: int, *, ended: bool = False) -> int:
    """When the process started, in clock ticks since boot; 0 when there is no such process.

    With `ended`, also of one that has ended and whose parent has not taken note of that.
    """
    found = process_stat(pid)
    return found.started if found is not None and (found.lives or ended) else 0


def process_stopped(pid: int) -> bool:
    """Whether the process is there, and is stopped."""
    found = process_stat(pid)
    return found is not None and found.stopped


def children_pids(pid: int) -> tuple[int, ...]:
    """The children of a process, without a look at all others; none where the kernel does not list them."""
    try:
        return tuple(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except (OSError, ValueError):
        return ()


def process_command(pid: int, proc: Path = Path("/proc")) -> str:
    """The process's command line; "" when it cannot be read."""
    try:
        return os.fsdecode((proc / str(pid) / "cmdline").read_bytes()).rstrip("\0").replace("\0", " ")
    except OSError:
        return ""


def pid_namespace() -> int:
    """The PID namespace of this process, by its inode; 0 when /proc does not tell."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def sees_processes_of(namespace: int) -> bool:
    """Whether this process sees those of that PID namespace (0: not recorded): it is its own, or the first, which sees all.

    Where /proc is that of another namespace, its numbers are not those by which this process can name others.
    """
    if not _own_process_table():
        return False
    return namespace in (0, pid_namespace()) or pid_namespace() == _FIRST_PID_NAMESPACE


def sees_every_process() -> bool:
    """Whether this process sees all of the machine. False as well where the kernel does not tell.

    Where systemd is the first process of a PID namespace, the namespace is a machine in a container: its kubelet and its pods are
    in it.
    """
    return _own_process_table() and (pid_namespace() == _FIRST_PID_NAMESPACE or _first_process() == "systemd")


def _first_process() -> str:
    try:
        return Path("/proc/1/comm").read_text().strip()
    except OSError:
        return ""


def _own_process_table() -> bool:
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def process_lives(pid: int, started: int) -> bool:
    """Whether the process of that pid and start time still runs; a zombie does not."""
    return pid > 0 and started > 0 and process_start_time(pid) == started
