"""The files of a machine's state, and whether the processes named in them still live."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tranche.core.errors import LedgerUnavailable
from tranche.hardware.process_stat import process_stat

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OWN_FOLDERS = frozenset({"locks", "simulator", "mps", "timeslices", "lost+found"})
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel


class StateFolder:
    """The files of one machine's state folder."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.ledger = state_dir / "ledger.db"
        self.known_gpus = state_dir / "gpus.json"  # the GPUs seen at each index
        self.limit_trial = state_dir / "memory-limits.json"  # the results of trying the driver's memory limits
        self.manager_name = state_dir / "mig-manager"  # the name of the machine's MIG manager, kept across restarts
        self.share_groups = state_dir / "groups"  # notes on the control groups that limit the memory of shares
        self.mps = state_dir / "mps"  # the MPS daemons' sockets, logs and records; socket names must be short
        self.socket = state_dir / "socket"  # where the service listens for `tranche run` of other users
        self.timeslices = state_dir / "timeslices"  # the lengths of time slices that Tranche has set
        self._locks = state_dir / "locks"
        self.agent_lock = self._locks / "agent"  # held by the machine's only agent; contains its process id
        self.decision_lock = self._locks / "decision"  # held while a decision is made
        self.gpu_locks = self._locks / "gpus"  # the folder of the locks held while a plan works on a GPU
        self.service_lock = self._locks / "service"  # held by the machine's only service

    def refuse_shared(self) -> None:
        """Raises LedgerUnavailable when others use the folder too, such as /var/lib or /tmp."""
        try:
            with os.scandir(self.state_dir) as entries:
                others = sorted(each.name for each in entries if each.is_dir() and each.name not in _OWN_FOLDERS)
        except OSError:
            return  # not there yet, or opening the ledger reports the problem
        if others or (self.state_dir.stat().st_mode & 0o002):
            found = f"it contains {', '.join(others[:3])}" if others else "all users can write to it"
            raise LedgerUnavailable(
                f"{self.state_dir} is not reserved for Tranche: {found}",
                hint="an agent needs its own state folder: name one that contains nothing else",
            )

    def keep_private(self) -> None:
        """Let only the owner into the folder. Raises LedgerUnavailable when others use it or another user owns it."""
        self.refuse_shared()
        try:
            self.state_dir.chmod(0o700)
        except OSError as error:
            raise LedgerUnavailable(f"cannot change who may read {self.state_dir}: {error.strerror}") from error

    @property
    def writable(self) -> bool:
        """Whether this user may write the folder and its ledger, or make them."""
        nearest = next(path for path in (self.state_dir, *self.state_dir.absolute().parents) if os.path.exists(path))
        wanted = [nearest] + [path for path in (self.ledger,) if os.path.exists(path)]
        return all(os.access(path, os.W_OK, effective_ids=True) for path in wanted)

    def session(self, name: str) -> Path:
        """Held while the process of that session lives."""
        return self._locks / "sessions" / name

    def sessions(self) -> list[Path]:
        """The lock files of all sessions, living and dead. Ignores other files."""
        folder = self._locks / "sessions"
        return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []

    def allocation(self, allocation_id: str) -> Path:
        """Held by `tranche run` and by its workload, which inherits it."""
        return self._locks / "allocations" / allocation_id

    def allocations(self) -> set[str]:
        """The ids of all allocations with files."""
        folder = self._locks / "allocations"
        return {path.name for path in folder.iterdir() if path.is_file()} if folder.is_dir() else set()

    def waiter(self, waiter_id: str) -> Path:
        """Held while a request waits."""
        return self._locks / "waiters" / waiter_id

    def waiters(self) -> set[str]:
        """The ids of all waiters with files, living and dead. Ignores other files."""
        folder = self._locks / "waiters"
        found = folder.iterdir() if folder.is_dir() else ()
        return {path.stem for path in found if path.suffix == ".bell" or path.is_file()}

    def wakeup_pipe(self, waiter_id: str) -> Path:
        """The socket that tells a waiter that its turn may have come."""
        return self._locks / "waiters" / f"{waiter_id}.bell"


def boot_clock() -> float:
    """Seconds since the machine started. Nobody can set this clock, and it runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """An id that changes with each boot of the machine; "" if the kernel gives none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def process_start_time(pid: int, *, ended: bool = False) -> int:
    """The process's start, in clock ticks since boot; 0 when there is no such process.

    With `ended`, includes zombies.
    """
    found = process_stat(pid)
    return found.started if found is not None and (found.lives or ended) else 0


def process_stopped(pid: int) -> bool:
    """Whether the process exists and is stopped."""
    found = process_stat(pid)
    return found is not None and found.stopped


def children_pids(pid: int) -> tuple[int, ...]:
    """The children of a process, without scanning all processes; none if the kernel does not list them."""
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
    """Whether this process sees the processes of that PID namespace (0: not recorded).

    It sees those of its own namespace, and all from the first one. If /proc shows another namespace, its pids mean nothing here.
    """
    if not _own_process_table():
        return False
    return namespace in (0, pid_namespace()) or pid_namespace() == _FIRST_PID_NAMESPACE


def sees_every_process() -> bool:
    """Whether this process sees all processes of the machine. Also False if the kernel does not tell.

    If systemd is the first process of a PID namespace, the namespace is a machine in a container, with its own kubelet and pods.
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
    """Whether the process with that pid and start time still runs; a zombie does not."""
    return pid > 0 and started > 0 and process_start_time(pid) == started
