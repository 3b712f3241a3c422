"""The detached runs of one user on this machine: a folder for each, with its state and its output, and a lock while it lives.

The run's own process writes the state. The command inherits the lock. So a run without a recorded end that nobody locks is lost:
it was killed, or the machine restarted.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tranche.core.errors import OutputUnwritable, UsageError
from tranche.documents.describe import timestamp

MOST_ENDED = 100
"""How many ended runs of a user are kept; the next run removes older ones, with their output."""
_STATE, _LAUNCH, _LOG, _LOCK = "state.json", "launch.json", "log", "lock"
_OVER = ("ended", "lost")
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in the place of a file blocks nobody


class MachineJob(NamedTuple):
    """A detached run. `pid` is that of its `tranche run`; times are in seconds since the epoch, None before they come.

    `lives` is whether its command or its `tranche run` does.
    """

    name: str
    request: str
    command: str
    pid: int
    created: float
    allocation_id: str = ""
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    lives: bool = False

    @property
    def status(self) -> str:
        """`waiting`, `running`, `ended`, or `lost` if it ended without a word."""
        if self.exit_code is not None:
            return "ended"
        if not self.lives:
            return "lost"
        return "running" if self.started else "waiting"


class JobLaunch(NamedTuple):
    """How a detached run was started: the command, the options of `tranche run`, the folder, and the environment.

    `machine` are the options that all commands share.
    """

    command: Sequence[str]
    options: Mapping[str, Any]
    folder: str
    environment: Mapping[str, str]
    machine: Mapping[str, str | None]


class JobStore:
    """The folder of a user's detached runs, as a descriptor: what another user may rename below it cannot lead elsewhere."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._folder = path, descriptor

    def reopened(self) -> JobStore:
        """The same folder, by a descriptor of its own."""
        return JobStore(self.path, os.dup(self._folder))

    def jobs(self) -> list[MachineJob]:
        """All, oldest first."""
        found = (self.find(each) for each in os.listdir(self._folder))
        return sorted((each for each in found if each is not None), key=lambda each: each.created)

    def find(self, name: str) -> MachineJob | None:
        """The run of that name; None if there is none, or its state cannot be read."""
        if "/" in name:
            return None
        with suppress(OSError, ValueError, TypeError), self._inside(name) as folder:
            lives = _locked(folder)  # before its last word is read
            with open(os.open(_STATE, os.O_RDONLY | _SAFE, dir_fd=folder)) as file:
                found = MachineJob(**json.load(file), lives=lives)
                return found if isinstance(found.created, int | float) else None
        return None

    def create(self, job: MachineJob, launch: JobLaunch, *, again: bool = False) -> int:
        """Write down a new run; returns its lock, which its process keeps. UsageError if there is one of that name.

        A run that is over may start `again`; its output stays.
        """
        fcntl.flock(self._folder, fcntl.LOCK_EX)
        try:
            if (before := self.find(job.name)) is not None and again and before.status in _OVER and before.lives:
                raise UsageError(
                    f"{job.name} has ended, but processes that it started are still running",
                    hint="end them, or delete the run: tranche job delete",
                )
            if before is not None and not (again and before.status in _OVER):
                raise UsageError(
                    f"you already have a detached run named {job.name}, which is {before.status}",
                    hint=f"choose another --name, or delete the existing run: tranche job delete {job.name}",
                )
            over = [each.name for each in self.jobs() if each.status in _OVER and each.name != job.name]
            for each in over[: max(0, len(over) - MOST_ENDED + 1)]:
                self.remove(each)
            if before is None:
                self.remove(job.name)
                with _reporting(self.path):
                    os.mkdir(job.name, 0o700, dir_fd=self._folder)
            with _reporting(self.path), self._inside(job.name) as folder:
                lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | _SAFE, 0o600, dir_fd=folder)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._replace(folder, _LAUNCH, launch._asdict())
            self.write(job)
            return lock
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)

    def write(self, job: MachineJob) -> None:
        """Replace the state of a run."""
        state = job._asdict()
        del state["lives"]
        with _reporting(self.path), self._inside(job.name) as folder:
            self._replace(folder, _STATE, state)

    def launch(self, name: str) -> JobLaunch:
        """How the run of that name was started; UsageError if that cannot be read."""
        try:
            with self._inside(name) as folder, open(os.open(_LAUNCH, os.O_RDONLY | _SAFE, dir_fd=folder)) as file:
                return _checked(JobLaunch(**json.load(file)))
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"cannot read how {name} was started: {error}", hint="start it with: tranche run --detach"
            ) from error

    @staticmethod
    def _replace(folder: int, name: str, content: Mapping[str, Any]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _SAFE
        with open(os.open(f"{name}.new", flags, 0o600, dir_fd=folder), "w") as file:
            json.dump(content, file)
        os.replace(f"{name}.new", name, src_dir_fd=folder, dst_dir_fd=folder)

    def log(self, name: str, *, write: bool = False) -> int:
        """The output of a run, as a descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if write else os.O_RDONLY
        with _reporting(self.path), self._inside(name) as folder:
            found = os.open(_LOG, flags | _SAFE, 0o600, dir_fd=folder)
            os.set_blocking(found, write)  # the command inherits it
            return found

    def remove(self, name: str) -> None:
        """Remove what is known of a run."""
        with suppress(FileNotFoundError):
            shutil.rmtree(name, dir_fd=self._folder)

    @contextmanager
    def _inside(self, name: str) -> Iterator[int]:
        folder = _enter(self._folder, name)
        try:
            yield folder
        finally:
            os.close(folder)


def _checked(launch: JobLaunch) -> JobLaunch:
    """The launch; ValueError unless its parts are of the right types."""
    texts = [*launch.command, launch.folder, *launch.environment, *launch.environment.values()]
    if not launch.command or not all(isinstance(each, str) for each in texts) or not isinstance(launch.options, dict):
        raise ValueError("a field has the wrong type")
    return launch


def open_jobs(environment: Mapping[str, str], *, create: bool = False) -> JobStore | None:
    """The detached runs of this user; None if there is no folder for them.

    With `create`, raises OutputUnwritable for a folder that cannot be made, or that is another user's or a symbolic link.
    """
    given = environment.get("XDG_STATE_HOME", "")
    home = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    path = home.joinpath(*_below_home())
    if create:
        with _reporting(path):
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            return JobStore(path, _opened(home, create=True))
    with suppress(OSError):
        return JobStore(path, _opened(home, create=False))
    return None


def _below_home() -> tuple[str, ...]:
    return "tranche", "jobs", os.uname().nodename  # machines may share a home


def _opened(home: Path, *, create: bool) -> int:
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in _below_home():
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
        folder, above = _enter(folder, name), folder
        os.close(above)
    return folder


@contextmanager
def _reporting(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputUnwritable(
            f"cannot store a detached run in {path}: {error.strerror}", hint="name another folder with XDG_STATE_HOME"
        ) from error


def _enter(parent: int, name: str) -> int:
    found = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _SAFE, dir_fd=parent)
    if os.fstat(found).st_uid != os.geteuid():
        os.close(found)
        raise PermissionError(0, "the folder belongs to another user")
    return found


def _locked(folder: int) -> bool:
    """Whether the run's process, or a process that inherited its lock, lives."""
    with open(os.open(_LOCK, os.O_RDWR | _SAFE, dir_fd=folder)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def job_document(job: MachineJob) -> dict[str, Any]:
    """A run as JSON; times are RFC 3339."""
    moments = {"created": job.created, "started": job.started, "ended": job.ended}
    return {
        "name": job.name,
        "request": job.request,
        "command": job.command,
        "status": job.status,
        "exitCode": job.exit_code,
        "allocationId": job.allocation_id or None,
        "pid": job.pid,
        **{name: None if moment is None else timestamp(moment) for name, moment in moments.items()},
    }
