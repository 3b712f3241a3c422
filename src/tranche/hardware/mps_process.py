"""The process of an MPS control daemon: started for one device, recognised by its environment, and ended.

A program pointed at a folder without a daemon runs without MPS and without limits, and reports nothing. So no program is admitted
before the daemon is known to live. The kernel's word about its process decides that, never the files in the folder.

Only a client that joins proves that a server admits clients. A server that a client's death has wedged is ACTIVE for its daemon,
answers every command, and logs nothing. A new client of it waits in cuInit without end, as does a client of a stopped server.
So an extra client goes ahead, in a process that can be ended. It makes no context, and leaves nothing on the GPU.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from tranche.core.errors import MpsFailed, MpsPathTooLong
from tranche.hardware.control_groups import move_out, remove_daemon_group
from tranche.hardware.mps_control import PIPES, PROGRAM, SERVER_PROGRAM, MpsControlClient, find_program
from tranche.hardware.process_stat import PROC, process_environment, process_file, process_ids, process_stat

_JOIN: Final = """
import ctypes, os
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    os._exit(0)
os.write(1, b"%d" % cuda.cuInit(0))
"""
_END_SECONDS: Final = 1.0
_ERRORS: Final = {
    800: "NOT_PERMITTED",
    805: "MPS_CONNECTION_FAILED",
    806: "MPS_RPC_FAILURE",
    807: "MPS_SERVER_NOT_READY",
    808: "MPS_MAX_CLIENTS_REACHED",
    809: "MPS_MAX_CONNECTIONS_REACHED",
    810: "MPS_CLIENT_TERMINATED",
}
"""CUDA's errors about MPS. Any other result of cuInit is not the server's."""


@dataclass(frozen=True, slots=True)
class ClientResult:
    """How the client fared. `silent`: no answer came in time. `error` is CUDA's, 0 for none, None if there was no answer."""

    error: int | None = None
    silent: bool = False

    @property
    def refused(self) -> str:
        """CUDA's word for the refusal, "" if the client was admitted or heard nothing of MPS."""
        name = _ERRORS.get(self.error or 0)
        return "" if name is None else f"CUDA_ERROR_{name} ({self.error})"

    @property
    def out_of_reach(self) -> bool:
        """Whether the server does not answer the daemon either: it died, or does not start."""
        return self.error in (805, 806)


LOGS: Final = "CUDA_MPS_LOG_DIRECTORY"
_SOCKET_PATH_BYTES: Final = 107
"""The longest name that the kernel accepts for a socket (sun_path), without its closing zero."""
_LONGEST_NAME: Final = "control_privileged"
_PID_FILE: Final = f"{PROGRAM}.pid"
_AS_DAEMON: Final = "-d"
"""Distinguishes a daemon, and the process that starts it, from the same program passing on a command."""
_FOR_EVERY_USER: Final = "-multiuser-server"
"""Lets one server of root's serve every user; users would otherwise wait for each other to end. Not every driver knows it."""
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
"""How many looks in a row must find nothing of a daemon before it counts as ended."""


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A daemon's process; `started` is in clock ticks since boot, `uid` is the user it serves.

    With `every_user` it serves all users, by a server of `uid`.
    """

    pid: int
    started: int
    uid: int
    every_user: bool = False

    @property
    def stopped(self) -> bool:
        """Whether it is stopped, and does nothing until continued."""
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
        """The folder of the daemon's and servers' logs."""
        return self.pipes.with_name(f"{self.pipes.name}.log")

    @property
    def control(self) -> MpsControlClient:
        """The client that speaks to the daemon."""
        return MpsControlClient(self.pipes, clean_environment(self.environment))

    def join(self, device_uuid: str, *, seconds: float) -> ClientResult:
        """Send a client of this user ahead, and wait up to `seconds`; it has a server started if there is none."""
        if not sys.executable:
            return ClientResult()
        settings = {PIPES: str(self.pipes), "CUDA_VISIBLE_DEVICES": device_uuid}
        try:
            client = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _JOIN],
                env={**clean_environment(self.environment), **settings},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError as error:
            raise MpsFailed(f"cannot start a client of the MPS daemon of {device_uuid}: {error}") from error
        said, silent = b"", False
        try:
            said, _ = client.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            said, silent = error.stdout or b"", True
        finally:
            client.kill()
            with suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver cannot be killed
                client.wait(_END_SECONDS)
        return ClientResult(int(said)) if said.isdigit() else ClientResult(silent=silent)

    def check_path(self) -> None:
        """MpsPathTooLong if a socket's path in the folder is too long: the daemon would end silently."""
        longest = len(os.fsencode(self.pipes.absolute() / _LONGEST_NAME))
        if longest > _SOCKET_PATH_BYTES:
            raise MpsPathTooLong(
                f"the sockets of an MPS daemon in {self.pipes} would have paths of {longest} bytes; "
                f"the kernel allows at most {_SOCKET_PATH_BYTES}",
                hint="choose a state folder with a shorter path: --state-dir",
            )

    def find(self) -> DaemonProcess | None:
        """The daemon of this folder: the one that the pid file names, or else the one started last."""
        try:
            pid = int((self.pipes / _PID_FILE).read_text())
        except (OSError, ValueError):
            pid = 0
        found = _process(pid) if self._is_ours(pid) else None
        return found or max(self._daemons(), key=lambda process: process.started, default=None)

    def start(self, device_uuid: str, *, sleep: Callable[[float], None] = time.sleep) -> DaemonProcess:
        """Start a daemon that serves only that device; MpsFailed, with the daemon's own words, if it does not come up.

        It outlives the process that started it if the machine allows that. It has no client yet, so no server has to move with
        it. Root's daemon serves every user if the driver supports that.
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
        move_out(found.pid)
        return found

    def _launch(self, device_uuid: str, options: tuple[str, ...]) -> tuple[int, str]:
        """Have the program start a daemon; returns its exit code and output."""
        environment = clean_environment(self.environment)
        settings = {PIPES: str(self.pipes), LOGS: str(self.logs), "CUDA_VISIBLE_DEVICES": device_uuid}
        # A file, not a pipe: the daemon may keep inherited files open, and a pipe would not end before the daemon does.
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
        """Open the folder, which is mounted into containers, to programs of all users.

        Only if no other user of the machine can reach it by its path, or if `everybody`; otherwise it stays closed.
        """
        if everybody or any(not above.stat().st_mode & stat.S_IXOTH for above in self.pipes.absolute().parents):
            self.pipes.chmod(0o755)

    def stop(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """End the daemon and its servers, by its own command or else by signals, and remove its sockets.

        MpsFailed if something of it lives on; its sockets stay then.
        """
        found = self.find()
        # A stopped daemon hears no command, and a daemon waits for its stopped server.
        if found is not None and not any(each.stopped for each in (found, *self.servers())):
            with suppress(MpsFailed):
                self.control.quit(seconds=_QUIT_SECONDS)
                _await_end(found, sleep)
        # A process that is starting a daemon may fork while it is killed, and one look may miss the fork.
        nothing_found = 0
        while nothing_found < _LOOKS:
            known = (found,) if found is not None and found.lives else ()
            living = {*known, *self._daemons(), *self.servers()}
            nothing_found = 0 if living else nothing_found + 1
            for process in living:
                _kill(process, sleep)
            if left := sorted(process.pid for process in living if process.lives):
                pids = ", ".join(map(str, left))
                raise MpsFailed(f"the MPS daemon at {self.pipes} did not exit: processes {pids} are still running")
        shutil.rmtree(self.pipes, ignore_errors=True)
        remove_daemon_group()

    def servers(self) -> tuple[DaemonProcess, ...]:
        """The servers of this daemon, including those left when it died: both carry the folder in their environment."""
        return self._processes(SERVER_PROGRAM)

    def _daemons(self) -> tuple[DaemonProcess, ...]:
        """The daemons of this folder, with or without a pid file, and the processes about to become or fork one."""
        return self._processes(PROGRAM, _AS_DAEMON)

    def _processes(self, program: str, option: str = "") -> tuple[DaemonProcess, ...]:
        found = (_process(pid) for pid in process_ids() if self._is_ours(pid, program, option))
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
        try:
            path, *options = _command_line(pid)
            if os.path.basename(path) != program or (option and option not in options):
                return False
            return os.fsencode(f"{PIPES}={self.pipes}") in process_environment(pid)
        except OSError:
            return False


def served_folders(root: Path, uid: int) -> Mapping[str, str]:
    """The folders right below `root` where living daemons of root or of user `uid` have, or had, their sockets.

    By name, each with the device it serves. A server whose daemon has died counts too.
    """
    found: dict[str, str] = {}
    for pid in process_ids():
        # A process may end meanwhile, or belong to another user.
        with suppress(OSError):
            if os.stat(f"{PROC}/{pid}").st_uid not in (0, uid):
                continue
            path, *options = _command_line(pid)
            name = os.path.basename(path)
            if name != SERVER_PROGRAM and (name != PROGRAM or _AS_DAEMON not in options):
                continue
            pairs = (os.fsdecode(each).partition("=") for each in process_environment(pid))
            environment = {variable: value for variable, _, value in pairs}
            pipes = Path(environment.get(PIPES, "/"))
            if os.path.realpath(pipes.parent) == os.path.realpath(root):  # a loop of links is no error here
                found[pipes.name] = environment.get("CUDA_VISIBLE_DEVICES", "")
    return found


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for NVIDIA's programs, without the settings of a share or another daemon."""
    return {name: value for name, value in environment.items() if not name.startswith(_FOREIGN)}


def _command_line(pid: int) -> list[str]:
    return os.fsdecode(process_file(pid, "cmdline")).split("\0")


def _process(pid: int) -> DaemonProcess | None:
    """The living process of that pid; a zombie is not alive."""
    found = process_stat(pid)
    if found is None or not found.lives:
        return None
    try:
        uid = os.stat(PROC / str(pid)).st_uid
        options = _command_line(pid)
    except OSError:
        return None
    return DaemonProcess(pid, found.started, uid, _FOR_EVERY_USER in options)


def _await_end(process: DaemonProcess, sleep: Callable[[float], None]) -> None:
    deadline = time.monotonic() + _QUIT_SECONDS
    while process.lives and time.monotonic() < deadline:
        sleep(_PAUSE_SECONDS)


def _kill(process: DaemonProcess, sleep: Callable[[float], None]) -> None:
    if process.lives:
        with suppress(OSError):  # gone meanwhile, or another user's: the caller checks whether it lives
            os.kill(process.pid, signal.SIGKILL)
        _await_end(process, sleep)
