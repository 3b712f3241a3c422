"""Everything said to an MPS control daemon, by NVIDIA's own program: the protocol of its socket is not published.

It uses version 2 of the commands, which every driver since r495 knows and which is still the default in r615. The program exits
with 0 even if it refuses, so every setting is read back. Its texts differ between drivers: each reader accepts every spelling
that is documented or was seen, and treats an unreadable answer as no success.

Any program that reaches the daemon's socket can set the limits of its clients. So the daemon's answers about limits are compared,
word for word, with its answers when Tranche set them. From 1 GiB on a daemon prints whole GiB; no other command reveals more.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from tranche.core.errors import MpsFailed
from tranche.core.quantity import MIB
from tranche.core.sharing import ALL_COMPUTE

PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"


def client_environment(pipes: str, memory: int | None, percent: int | None) -> dict[str, str]:
    """The variables of a client of the daemon whose sockets lie in `pipes`; None sets no limit.

    A daemon's own limit is the largest share since it started; a client's limit can only be lower.
    """
    # A daemon shows its clients only the device it serves, and calls it 0.
    limit = {} if memory is None else {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit_text(memory)}"}
    ceiling = {} if percent is None else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
    return {PIPES: pipes, **limit, **ceiling}


def limit_text(memory: int) -> str:
    """`memory` bytes as commands and variables write a limit: whole MiB, rounded down."""
    return f"{memory // MIB}M"


_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE: Final = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?\s*$", re.IGNORECASE)
_SUCCESS: Final = ("0", "CUDA_SUCCESS", "SUCCESS")


class ServerStatus(StrEnum):
    """What a daemon says of its server. FAULT: a client's fault ended all; it lasts until every client that saw it has ended."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class PrintedLimit:
    """A limit as the daemon prints it: `count` units of `unit` bytes, rounded down. From 1 GiB on it prints whole GiB."""

    count: int
    unit: int

    def agrees(self, memory: int) -> bool:
        """Whether a daemon with a limit of `memory` bytes may print this."""
        return memory // self.unit == self.count


def read_numbers(answer: str) -> tuple[int, ...]:
    """Process ids, one or several per line; words such as `No server` mean none."""
    return tuple(int(word) for word in answer.split() if word.isdecimal())


def read_status(answer: str) -> ServerStatus:
    """A server's status, ignoring blanks around it."""
    word = answer.strip().upper()
    return ServerStatus(word) if word in list(ServerStatus) else ServerStatus.UNKNOWN


def read_limit(answer: str) -> PrintedLimit | None:
    """The limit on the last line; None if it names none."""
    lines = answer.strip().splitlines()
    found = _SIZE.search(lines[-1]) if lines else None
    return None if found is None else PrintedLimit(int(found[1]), _UNITS[found[2].upper()])


def read_percentage(answer: str) -> float | None:
    """The percentage of a device's compute that clients may use, on the last line; None if it names none."""
    words = answer.split()
    try:
        return float(words[-1].removesuffix("%")) if words else None
    except ValueError:
        return None


def read_terminated(answer: str) -> bool:
    """Whether the answer says that a client was terminated: 0, or the name of CUDA's success."""
    words = answer.split()
    return bool(words) and words[-1].upper() in _SUCCESS


PROGRAM: Final = "nvidia-cuda-mps-control"
SERVER_PROGRAM: Final = "nvidia-cuda-mps-server"
_ONLY_DEVICE: Final = "0"
"""A daemon that sees one device calls it 0. No driver was seen to accept a MIG device's UUID here."""
_SECONDS: Final = 10.0
_SERVER_SECONDS: Final = 60.0
"""A server first makes a context on its device, which takes long if the driver has to wake the GPU up."""
_GIB: Final = 2**30


class MpsControlClient(NamedTuple):
    """Speaks to the daemon whose sockets lie in `pipes`, with the machine's `environment`."""

    pipes: Path
    environment: Mapping[str, str]

    def ask(self, command: str, *, seconds: float = _SECONDS) -> str:
        """The daemon's answer; MpsFailed if there is none within `seconds`."""
        try:
            done = subprocess.run(
                [find_program(self.environment)],
                input=f"{command}\n",
                env={**self.environment, PIPES: str(self.pipes)},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MpsFailed(f"the MPS daemon at {self.pipes} did not answer '{command}' in {seconds:g} s") from error
        except OSError as error:
            raise MpsFailed(f"cannot start {PROGRAM}: {error.strerror}") from error
        if done.returncode != 0:
            said = " ".join((done.stdout + done.stderr).split())
            raise MpsFailed(f"the MPS daemon at {self.pipes} refused '{command}': {said}")
        return done.stdout

    def servers(self, *, seconds: float = _SECONDS) -> tuple[int, ...]:
        """The process ids of the servers: none before the first client, then one for each user."""
        return read_numbers(self.ask("get_server_list", seconds=seconds))

    def start_server(self, uid: int) -> None:
        """Start a server for that user before its first client comes; `servers` tells when it is there."""
        self.ask(f"start_server -uid {uid}", seconds=_SERVER_SECONDS)

    def server_status(self, server: int, *, seconds: float = _SECONDS) -> ServerStatus:
        """That server's status."""
        return read_status(self.ask(f"get_server_status {server}", seconds=seconds))

    def clients(self, server: int) -> tuple[int, ...]:
        """The process ids of a server's clients, as the host numbers them."""
        return read_numbers(self.ask(f"get_client_list {server}"))

    def limit_memory(self, memory: int) -> None:
        """Limit every client, of running and later servers, to `memory` bytes; MpsFailed otherwise.

        The daemon prints whole GiB, rounded down. So another limit is set first: an answer that follows both is not an old one.
        """
        for value in (memory + _GIB, memory):
            self._set_limit("default_device_pinned_mem_limit", "", value)
        for server in self.servers():
            try:
                self._set_limit("device_pinned_mem_limit", f"{server} ", memory)
            except MpsFailed:
                if server in self.servers():
                    raise  # a server that has ended limits nothing, and the next one has the limit of later servers

    def said_limits(self, device_uuid: str, servers: Sequence[int], *, seconds: float = _SECONDS) -> LimitReport:
        """What the daemon says of its limits, for later servers and for each running one."""
        deadline = time.monotonic() + seconds

        def said(what: str) -> str:
            answer = self.ask(f"get_{what}".strip(), seconds=max(0.1, deadline - time.monotonic()))
            return " ".join(answer.split())

        def of(kind: str, server: str) -> ReportedLimit:
            memory = f"{kind}device_pinned_mem_limit {server}"
            return ReportedLimit(
                said(f"{memory}{_ONLY_DEVICE}"),
                said(f"{memory}{device_uuid}"),
                said(f"{kind}active_thread_percentage {server}"),
            )

        return LimitReport({_TO_COME: of("default_", ""), **{str(each): of("", f"{each} ") for each in servers}})

    def terminate_client(self, server: int, client: int, *, seconds: float) -> bool:
        """Drain and end the contexts of a client, which may then be killed; returns whether the daemon confirms it.

        Also False if the daemon does not answer within `seconds`, as when its server is wedged.
        """
        try:
            return read_terminated(self.ask(f"terminate_client {server} {client}", seconds=seconds))
        except MpsFailed:
            return False

    def quit(self, *, seconds: float) -> None:
        """Ask the daemon and its servers to end; MpsFailed if it does not answer, as while a client is attached."""
        self.ask("quit", seconds=seconds)

    def _set_limit(self, what: str, server: str, memory: int) -> None:
        text = limit_text(memory)
        self.ask(f"set_{what} {server}{_ONLY_DEVICE} {text}")
        said = self.ask(f"get_{what} {server}{_ONLY_DEVICE}")
        answer = read_limit(said)
        if answer is None or not answer.agrees(memory):
            raise MpsFailed(
                f"the memory limit of the MPS daemon at {self.pipes} was set to {text}, but the daemon reports "
                f"{said.strip() or 'nothing'}",
                hint="limits require driver release 495 or later",
            )


def find_program(environment: Mapping[str, str]) -> str:
    """The path of nvidia-cuda-mps-control; MpsFailed if it is not installed."""
    found = shutil.which(PROGRAM, path=environment.get("PATH"))
    if found is None:
        raise MpsFailed(
            f"{PROGRAM} is not on the PATH", hint="install the driver's utilities package"
        ) from FileNotFoundError(PROGRAM)
    return found


_TO_COME: Final = ""
"""Stands for a server's process id: servers that start later."""


class ReportedLimit(NamedTuple):
    """A daemon's answers about the clients of one server, or of later servers; each answer is one line.

    A device has one memory limit by its number and another by its UUID; the one set last counts.
    """

    by_number: str
    by_uuid: str
    compute: str


class LimitReport(NamedTuple):
    """What a daemon says of each server, by process id, and of later servers."""

    servers: Mapping[str, ReportedLimit]

    def encoded(self) -> str:
        """The report as text."""
        return json.dumps(self.servers)

    def of(self, servers: Collection[int]) -> LimitReport:
        """The report about later servers and these; a daemon answers that an ended server is not found."""
        heeded = {_TO_COME, *map(str, servers)}
        return LimitReport({server: said for server, said in self.servers.items() if server in heeded})

    def difference(self, before: str, memory: int) -> str:
        """How the report differs from the earlier text `before`, in words; "" if it does not.

        A server started since has the limit of later servers, `memory` bytes. No driver was seen to report that: it may name no
        limit, or 0.
        """
        known = {server: ReportedLimit(*said) for server, said in (json.loads(before) if before else {}).items()}
        for server, now in self.servers.items():
            was = known.get(server)
            if why := _unlike(now, memory, to_come=server == _TO_COME) if was is None else _changed(now, was):
                return why
        return ""


def _changed(now: ReportedLimit, was: ReportedLimit) -> str:
    for what, said, before in zip(("memory limit", "memory limit", "compute ceiling"), now, was, strict=True):
        if said != before:
            return f"the {what} is {said or 'none'}, but was {before or 'none'}"
    return ""


def _unlike(said: ReportedLimit, memory: int, *, to_come: bool) -> str:
    """What differs from Tranche's settings, by device number. Drivers vary in what they say of a name never set."""
    limit = read_limit(said.by_number)
    if limit is not None and not limit.agrees(memory) and (limit.count or to_come):
        return f"the memory limit is {said.by_number}, but was set to {limit_text(memory)}"
    share = read_percentage(said.compute)
    if share is not None and 0 < share < ALL_COMPUTE:  # that is a daemon's default, which Tranche never changes
        return f"the compute ceiling is {share:g}%, but none was set"
    return ""
