"""The client's half of MPS without CUDA: what libcuda says to the daemon and its server, in the simulator's own protocol."""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulator.mps_daemon import MpsBench

PROTOCOL = 1
TERMINAL, CLIENT = 1, 2
HELLO = struct.Struct("III4xQ128s64s")
GRANT = struct.Struct("iII4xdII")
DEVICE = struct.Struct("64sQ")
NOTE = struct.Struct("III")
CREATE, DESTROY, FAULT, BYE = 1, 2, 3, 4


@dataclass(slots=True)
class MpsCaller:
    """A connection to a daemon, and to its server once that has granted it. Limits in bytes, by UUID; 0: none."""

    connection: socket.socket
    error: int = -1
    server: int = 0
    percentage: float = 0
    limits: dict[str, int] | None = None
    page: mmap.mmap | None = None

    @classmethod
    def connect(
        cls, bench: MpsBench, *, leaf: tuple[str, ...] = (), uid: int | None = None, connections: int = 0
    ) -> MpsCaller:
        """Greets the daemon, as a process of that user if one is given, at its socket or a server's or a namespace's."""
        return cls(_greet(bench, CLIENT, leaf, uid, connections))

    @staticmethod
    def terminal(bench: MpsBench, *, uid: int) -> Callable[[str], str]:
        """What a user types into nvidia-cuda-mps-control, and what it answers."""
        connection = _greet(bench, TERMINAL, (), uid, 0)

        def ask(command: str) -> str:
            connection.send(command.encode() + b"\0")
            return connection.recv(16384).rstrip(b"\0").decode()

        return ask

    def join(self) -> MpsCaller:
        """Waits for the server's grant, which `error` refuses unless it is 0."""
        message, files, _, _ = socket.recv_fds(self.connection, 4096, 1)
        if not message:
            raise ConnectionError
        self.error, self.server, _, self.percentage, _, count = GRANT.unpack_from(message)
        devices = (DEVICE.unpack_from(message, GRANT.size + i * DEVICE.size) for i in range(count))
        self.limits = {uuid.rstrip(b"\0").decode(): limit for uuid, limit in devices}
        for file in files:
            self.page = mmap.mmap(file, 4)
            os.close(file)
        return self

    def waits(self) -> bool:
        """Whether nothing has come from the server yet."""
        self.connection.setblocking(False)
        try:
            self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self.connection.settimeout(30)
        return False

    def create(self, device: int = 0) -> int:
        """A context on a device; CUDA's error code."""
        self.connection.send(NOTE.pack(CREATE, device, 0))
        (error,) = struct.unpack("i", self.connection.recv(4))
        return int(error)

    def tell(self, kind: int, *, device: int = 0, code: int = 0) -> None:
        self.connection.send(NOTE.pack(kind, device, code))

    def health(self) -> int:
        """What every call of the client would return."""
        assert self.page is not None
        return int(struct.unpack_from("I", self.page)[0])

    def leave(self) -> None:
        """As when the process ends, however it does."""
        self.connection.close()


def _greet(bench: MpsBench, kind: int, leaf: tuple[str, ...], uid: int | None, connections: int) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    bench.callers.append(connection)
    try:
        if uid is not None:
            os.seteuid(uid)
        connection.connect(str(bench.pipe.joinpath(*leaf, "control")))
    finally:
        if uid is not None:
            os.seteuid(0)
    connection.send(HELLO.pack(PROTOCOL, kind, connections, 4026531836, b"", b"./nbody"))
    connection.settimeout(30)
    return connection


@contextmanager
def mps_callers(bench: MpsBench, count: int) -> Iterator[list[MpsCaller]]:
    """Clients that have a context each on the first device."""
    callers = [MpsCaller.connect(bench).join() for _ in range(count)]
    try:
        for caller in callers:
            assert caller.error == 0
            assert caller.create() == 0
        yield callers
    finally:
        for caller in callers:
            caller.leave()
