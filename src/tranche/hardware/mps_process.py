"""The process of an MPS control daemon: started for one device, known again by its environment, and ended.

Programs that are pointed at a folder without a daemon run without MPS and without limits, and say nothing. So nobody is let in
before the daemon is known to live, and it is known by what the kernel says of its process, never by files that lie there.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from tranche.core.errors import MpsFailed, MpsPathTooLong
from tranche.hardware import daemon_group
from tranche.hardware.mps_client import ClientResult, join
from tranche.hardware.mps_control import PROGRAM, SERVER_PROGRAM, MpsControlClient, find_program
from tranche.hardware.mps_environment import PIPES
from tranche.hardware.process_stat import PROC, process_stat

LOGS: Final = "CUDA_MPS_LOG_DIRECTORY"
_SOCKET_PATH_BYTES: Final = 107
"""What the kernel takes as the name of a socket (sun_path), without its closing zero."""
_LONGEST_NAME: Final = "control_privileged"
_PID_FILE: Final = f"{PROGRAM}.pid"
_AS_DAEMON: Final = "-d"
"""What tells a daemon, and the process that starts it, from the same program while it passes on a command."""
_FOR_EVERY_USER: Final = "-multiuser-server"
"""Has one server of root's serve programs of every user, who would wait for each other's end else. Not every driver knows it."""
_START_SECONDS: Final = 30.0
_QUIT_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.02
_FOREIGN: Final = (
    "CUDA_",
    "TRANCHE_ALLOCATION",
    "TRANCHE_KEY",
    "TRANCHE_REGISTER",
    "TRANCHE_REQUEST",
    "NVIDIA_VISIBLE_DEVICES",
)
"""What must not come from the caller's environment: settings of another daemon, and the marks of a share."""
_LOOKS: Final = 2
"""So often in a row nothing of a daemon is found before it counts as ended."""


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A daemon's process; `started` in clock ticks since boot, `uid` of the user whose clients it serves.

    With `every_user` it serves those of all users, by a server of `uid`.
    """

    pid: int
    started: int
    uid: int
    every_user: bool = False

    @property
    def stopped(self) -> bool:
        """Whether it does nothing until somebody continues it."""
        found = process_stat(self.pid)
        return found is not None and found.stopped

    @property
    def lives(self) -> bool:
        """Whether that very process still runs."""
        found = _process(self.pid)
        return found is not None and found.started == self.started


@dataclass(frozen=True, slots=True)
class MpsProcess:
    """The daemon, living or not, whose sockets are in `pipes`, with its log beside them."""

    pipes: Path
    environment: Mapping[str, str]

    @property
    def logs(self) -> Path:
        """The folder of the logs of daemon and servers."""
        return self.pipes.with_name(f"{self.pipes.name}.log")

    @property
    def control(self) -> MpsControlClient:
        """What speaks to the daemon."""
        return MpsControlClient(self.pipes, clean_environment(self.environment))

    def join(self, device_uuid: str, *, seconds: float) -> ClientResult:
        """Send a client ahead, which has a server started where there is none."""
        return join(self.pipes, clean_environment(self.environment), device_uuid, seconds=seconds)

    def check_path(self) -> None:
        """MpsPathTooLong when a socket in the folder cannot be named: the daemon would end without a word."""
        longest = len(os.fsencode(self.pipes.absolute() / _LONGEST_NAME))
        if longest > _SOCKET_PATH_BYTES:
            raise MpsPathTooLong(
                f"the sockets of an MPS daemon in {self.pipes} would have names of {longest} bytes; "
                f"the kernel takes {_SOCKET_PATH_BYTES}",
                hint="choose a state folder with a shorter path: --state-dir",
            )

    def find(self) -> DaemonProcess | None:
        """The daemon of this very folder: the one that the pid file names, where it names one; else the one started last."""
        try:
            pid = int((self.pipes / _PID_FILE).read_text())
        except (OSError, ValueError):
            pid = 0
        found = _process(pid) if self._is_ours(pid) else None
        return found or max(self._daemons(), key=lambda process: process.started, default=None)

    def start(self, device_uuid: str, *, sleep: Callable[[float], None] = time.sleep) -> DaemonProcess:
        """Start a daemon that serves that device alone; MpsFailed, with its own words, when it does not come up.

        It outlives what started it, where the machine lets it: nobody is a client of it yet, so no server has to come along.
        Root's serves programs of every user, where the driver knows how.
        """
        self.check_path()
        try:
            for folder in (self.pipes, self.logs):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise MpsFailed(f"cannot start the MPS daemon of {device_uuid}: {error}") from error
        code, said = 1, ""
        for options in ((_FOR_EVERY_USER,), ()) if os.geteuid() == 0 else ((),):
            code, said = self._launch(device_uuid, options)
            if code == 0:
                break
        deadline = time.monotonic() + _START_SECONDS
        while (found := self._answering()) is None and code == 0 and time.monotonic() < deadline:
            sleep(_PAUSE_SECONDS)
        if found is None:
            raise MpsFailed(f"cannot start the MPS daemon of {device_uuid}: {said or f'it ended; see {self.logs}'}")
        daemon_group.move_out(found.pid)
        return found

    def _launch(self, device_uuid: str, options: tuple[str, ...]) -> tuple[int, str]:
        """Have the program start a daemon; its exit code, and what it said."""
        environment = clean_environment(self.environment)
        settings = {PIPES: str(self.pipes), LOGS: str(self.logs), "CUDA_VISIBLE_DEVICES": device_uuid}
        # A file, not a pipe: the daemon may keep what it inherits open, and a pipe would not end before the daemon does.
        with TemporaryFile() as output:
            try:
                done = subprocess.run(
                    [find_program(environment), _AS_DAEMON, *options],
                    env={**environment, **settings},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=_START_SECONDS,
                    check=False,
                    cwd="/",
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise MpsFailed(f"cannot start the MPS daemon of {device_uuid}: {error}") from error
            output.seek(0)
            return done.returncode, " ".join(output.read().decode(errors="replace").split())

    def admit(self, *, everybody: bool) -> None:
        """Let programs of all users come to the sockets by the folder itself, as it is mounted into their containers.

        Only where no other user of the machine comes to it by its path; the folder stays closed else. `everybody`: in any case.
        """
        if everybody or any(not above.stat().st_mode & stat.S_IXOTH for above in self.pipes.absolute().parents):
            self.pipes.chmod(0o755)

    def stop(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """End the daemon and its servers, by its own command and else by signals, and remove its sockets.

        MpsFailed when something of it lives on; its sockets stay then.
        """
        found = self.find()
        # One that is stopped hears no command, and what its server does not hear the daemon waits for.
        if found is not None and not any(each.stopped for each in (found, *self.servers())):
            with suppress(MpsFailed):
                self.control.quit(seconds=_QUIT_SECONDS)
                _await_end(found, sleep)
        # A process that still starts a daemon may fork while it is killed, and one look may miss the fork.
        nothing_found = 0
        while nothing_found < _LOOKS:
            known = (found,) if found is not None and found.lives else ()
            living = {*known, *self._daemons(), *self.servers()}
            nothing_found = 0 if living else nothing_found + 1
            for process in living:
                _kill(process, sleep)
            if left := sorted(process.pid for process in living if process.lives):
                pids = ", ".join(map(str, left))
                raise MpsFailed(f"the MPS daemon of {self.pipes} does not end: processes {pids} live on")
        shutil.rmtree(self.pipes, ignore_errors=True)
        daemon_group.remove_if_empty()

    def servers(self) -> tuple[DaemonProcess, ...]:
        """The servers of this daemon, and those that it left when it died: both carry the folder in their environment."""
        return self._processes(SERVER_PROGRAM)

    def _daemons(self) -> tuple[DaemonProcess, ...]:
        """The daemons of this folder, with or without a pid file, and the processes that are about to become or to fork one."""
        return self._processes(PROGRAM, _AS_DAEMON)

    def _processes(self, program: str, option: str = "") -> tuple[DaemonProcess, ...]:
        pids = [int(entry.name) for entry in os.scandir(PROC) if entry.name.isdigit()]
        found = (_process(pid) for pid in pids if self._is_ours(pid, program, option))
        return tuple(each for each in found if each is not None)

    def _answering(self) -> DaemonProcess | None:
        found = self.find()
        if found is None:
            return None
        try:
            self.control.servers()
        except MpsFailed:
            return None
        return found

    def _is_ours(self, pid: int, program: str = PROGRAM, option: str = "") -> bool:
        folder = PROC / str(pid)
        try:
            name, *options = os.fsdecode((folder / "cmdline").read_bytes()).split("\0")
            if Path(name).name != program or (option and option not in options):
                return False
            pipes = os.fsencode(f"{PIPES}={self.pipes}")
            return pipes in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


def served_folders(root: Path, uid: int, proc: Path = PROC) -> Mapping[str, str]:
    """The folders right below `root` that living daemons of root's or of user `uid` have their sockets in, or had.

    By their names, each with the device that it serves. A server whose daemon has died counts too.
    """
    found: dict[str, str] = {}
    for entry in os.scandir(proc):
        # A process may end meanwhile, or be somebody else's.
        with suppress(OSError):
            if not entry.name.isdigit() or entry.stat().st_uid not in (0, uid):
                continue
            name, *options = os.fsdecode(Path(entry.path, "cmdline").read_bytes()).split("\0")
            if Path(name).name != SERVER_PROGRAM and (Path(name).name != PROGRAM or _AS_DAEMON not in options):
                continue
            pairs = (os.fsdecode(each).partition("=") for each in Path(entry.path, "environ").read_bytes().split(b"\0"))
            environment = {variable: value for variable, _, value in pairs}
            pipes = Path(environment.get(PIPES, "/"))
            if os.path.realpath(pipes.parent) == os.path.realpath(root):  # a loop of links is no error here
                found[pipes.name] = environment.get("CUDA_VISIBLE_DEVICES", "")
    return found


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for NVIDIA's programs, without what a share or another daemon had put there."""
    return {name: value for name, value in environment.items() if not name.startswith(_FOREIGN)}


def _process(pid: int) -> DaemonProcess | None:
    """The living process of that pid; a zombie does not live."""
    found = process_stat(pid)
    if found is None or not found.lives:
        return None
    try:
        uid = os.stat(PROC / str(pid)).st_uid
        options = os.fsdecode((PROC / str(pid) / "cmdline").read_bytes()).split("\0")
    except OSError:
        return None
    return DaemonProcess(pid, found.started, uid, _FOR_EVERY_USER in options)


def _await_end(process: DaemonProcess, sleep: Callable[[float], None]) -> None:
    deadline = time.monotonic() + _QUIT_SECONDS
    while process.lives and time.monotonic() < deadline:
        sleep(_PAUSE_SECONDS)


def _kill(process: DaemonProcess, sleep: Callable[[float], None]) -> None:
    if process.lives:
        with suppress(OSError):  # gone meanwhile, or another user's: whoever asks looks whether it lives
            os.kill(process.pid, signal.SIGKILL)
        _await_end(process, sleep)
