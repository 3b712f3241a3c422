"""Everything said to an MPS control daemon, by NVIDIA's own program: the protocol of its socket is not published.

Version 2 of the commands, which every driver since r495 knows and which is the default still in r615. The program answers with
exit code 0 also when it refuses, so whoever sets something reads it back.

Whoever reaches the daemon's socket can set the limits of its clients. So what it says of them is compared word for word with
what it said when Tranche set them. From 1 GiB on a daemon prints whole GiB, and nothing reads more of it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tranche.core.errors import MpsFailed
from tranche.hardware.mps_answers import (
    ServerStatus,
    read_limit,
    read_numbers,
    read_percentage,
    read_status,
    read_terminated,
)
from tranche.hardware.mps_environment import PIPES, limit_text

PROGRAM: Final = "nvidia-cuda-mps-control"
SERVER_PROGRAM: Final = "nvidia-cuda-mps-server"
_ONLY_DEVICE: Final = "0"
"""A daemon that sees one device calls it 0. No driver was seen to heed a MIG device's UUID here."""
_SECONDS: Final = 10.0
_SERVER_SECONDS: Final = 60.0
"""A server makes a context on its device first, which takes long where the driver has to wake the GPU up."""
_GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class MpsControlClient:
    """Speaks to the daemon whose sockets lie in `pipes`, with the machine's `environment`."""

    pipes: Path
    environment: Mapping[str, str]

    def ask(self, command: str, *, seconds: float = _SECONDS) -> str:
        """What the daemon answers; MpsFailed when there is none, or no answer within `seconds`."""
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
            raise MpsFailed(f"the MPS daemon of {self.pipes} did not answer '{command}' in {seconds:g} s") from error
        except OSError as error:
            raise MpsFailed(f"cannot start {PROGRAM}: {error.strerror}") from error
        if done.returncode != 0:
            said = " ".join((done.stdout + done.stderr).split())
            raise MpsFailed(f"the MPS daemon of {self.pipes} refused '{command}': {said}")
        return done.stdout

    def servers(self, *, seconds: float = _SECONDS) -> tuple[int, ...]:
        """The process ids of the servers: none before the first client, and one for each user."""
        return read_numbers(self.ask("get_server_list", seconds=seconds))

    def start_server(self, uid: int) -> None:
        """Start a server for that user before its first client comes; `servers` tells when it is there."""
        self.ask(f"start_server -uid {uid}", seconds=_SERVER_SECONDS)

    def server_status(self, server: int, *, seconds: float = _SECONDS) -> ServerStatus:
        """How that server is."""
        return read_status(self.ask(f"get_server_status {server}", seconds=seconds))

    def clients(self, server: int) -> tuple[int, ...]:
        """The process ids of a server's clients, as the host numbers them."""
        return read_numbers(self.ask(f"get_client_list {server}"))

    def limit_memory(self, memory: int) -> None:
        """Let no client, that of a server which runs and of later ones, have more than `memory` bytes; MpsFailed otherwise.

        What the daemon prints is rounded down to whole GiB. So another limit is set first: an answer that follows both was
        not there before.
        """
        for value in (memory + _GIB, memory):
            self._set_limit("default_device_pinned_mem_limit", "", value)
        for server in self.servers():
            try:
                self._set_limit("device_pinned_mem_limit", f"{server} ", memory)
            except MpsFailed:
                if server in self.servers():
                    raise  # one that has ended meanwhile limits nobody, and the next has the limit of servers to come

    def said_limits(self, device_uuid: str, servers: Sequence[int], *, seconds: float = _SECONDS) -> LimitReport:
        """What the daemon says of its limits: of servers to come, and of each that runs."""
        deadline = time.monotonic() + seconds

        def said(what: str) -> str:
            return self.ask(f"get_{what}".strip(), seconds=max(0.1, deadline - time.monotonic()))

        def of(kind: str, server: str) -> ReportedLimit:
            memory = f"{kind}device_pinned_mem_limit {server}"
            return _said_limit(
                said(f"{memory}{_ONLY_DEVICE}"),
                said(f"{memory}{device_uuid}"),
                said(f"{kind}active_thread_percentage {server}"),
            )

        return LimitReport({_TO_COME: of("default_", ""), **{str(each): of("", f"{each} ") for each in servers}})

    def terminate_client(self, server: int, client: int, *, seconds: float) -> bool:
        """Drain and end the contexts of a client, which may then be killed; whether the daemon says that it is done.

        False also when it did not answer within `seconds`, as one whose server is wedged.
        """
        try:
            return read_terminated(self.ask(f"terminate_client {server} {client}", seconds=seconds))
        except MpsFailed:
            return False

    def quit(self, *, seconds: float) -> None:
        """Ask the daemon and its servers to end; MpsFailed when it does not answer, as while a client is attached."""
        self.ask("quit", seconds=seconds)

    def _set_limit(self, what: str, server: str, memory: int) -> None:
        text = limit_text(memory)
        self.ask(f"set_{what} {server}{_ONLY_DEVICE} {text}")
        said = self.ask(f"get_{what} {server}{_ONLY_DEVICE}")
        answer = read_limit(said)
        if answer is None or not answer.agrees(memory):
            raise MpsFailed(
                f"the MPS daemon of {self.pipes} was told to limit memory to {text}, and says {said.strip() or 'nothing'}",
                hint="limits need a driver of release 495 or later",
            )


def find_program(environment: Mapping[str, str]) -> str:
    """The path of nvidia-cuda-mps-control; MpsFailed where it is not installed."""
    found = shutil.which(PROGRAM, path=environment.get("PATH"))
    if found is None:
        raise MpsFailed(
            f"{PROGRAM} is not on the PATH", hint="it comes with the driver: install the package of its utilities"
        )
    return found


_ALL_COMPUTE: Final = 100
"""In percent: what a daemon gives every client until somebody says otherwise, which Tranche never does."""
_TO_COME: Final = ""
"""In the place of a server's process id: servers that start later."""


class ReportedLimit(NamedTuple):
    """What is said of the clients of one server, or of servers to come, each answer as one line.

    A device has a limit of memory by its number and another by its UUID, and the one that was set last counts.
    """

    by_number: str
    by_uuid: str
    compute: str


def _said_limit(by_number: str, by_uuid: str, compute: str) -> ReportedLimit:
    """What is said, of the daemon's answers."""
    return ReportedLimit(*(" ".join(answer.split()) for answer in (by_number, by_uuid, compute)))


@dataclass(frozen=True, slots=True)
class LimitReport:
    """What a daemon says, by the server's process id, and of servers to come."""

    servers: Mapping[str, ReportedLimit]

    def encoded(self) -> str:
        """The same as text."""
        return json.dumps(self.servers)

    def of(self, servers: Collection[int]) -> LimitReport:
        """What is said of servers to come, and of these: of one that has ended meanwhile a daemon says that it is not found."""
        heeded = {_TO_COME, *map(str, servers)}
        return LimitReport({server: said for server, said in self.servers.items() if server in heeded})

    def difference(self, before: str, memory: int) -> str:
        """What is said otherwise than in that text of before, in words; "" when nothing is.

        A server that has started since has the limits of servers to come, `memory` bytes, and no driver was seen to say so of it:
        it may name no limit, or 0.
        """
        known = {server: ReportedLimit(*said) for server, said in (json.loads(before) if before else {}).items()}
        for server, now in self.servers.items():
            was = known.get(server)
            if why := _unlike(now, memory, to_come=server == _TO_COME) if was is None else _changed(now, was):
                return why
        return ""


def _changed(now: ReportedLimit, was: ReportedLimit) -> str:
    for what, said, before in zip(("limit of memory", "limit of memory", "ceiling of compute"), now, was, strict=True):
        if said != before:
            return f"the {what} is {said or 'none'}, and was {before or 'none'}"
    return ""


def _unlike(said: ReportedLimit, memory: int, *, to_come: bool) -> str:
    """What is not as Tranche sets it, by the device's number; what drivers say of another name that was never set differs."""
    limit = read_limit(said.by_number)
    if limit is not None and not limit.agrees(memory) and (limit.count or to_come):
        return f"the limit of memory is {said.by_number}, and was set to {limit_text(memory)}"
    share = read_percentage(said.compute)
    if share is not None and 0 < share < _ALL_COMPUTE:
        return f"the ceiling of compute is {share:g} %, and none was set"
    return ""
