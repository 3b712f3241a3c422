"""The socket between users' commands and the service of a shared machine, and its messages.

A message is one JSON object in one packet of a Unix socket (SOCK_SEQPACKET), at most 64 KiB. The kernel says who the peer is; the
service believes nothing else about a client's identity. A client sends one `run` message, then `started` and `ended`. The service
sends `accepted`, `note`, `warning`, `granted`, `admitted`, `error` and `over`. It answers a `ledger` message with `ledger` and
two files, and a `node` message with `node` and, if the machine has a fence, a file: what the driver shows to root.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tranche.core.errors import PermissionDenied, ServiceUnavailable, TrancheError, UsageError, all_errors

VERSION = 1
"""The version of the messages. A service refuses another one, and says which it speaks."""
LONGEST = 64 * 1024
ANSWERS_WITHIN_SECONDS = 30.0
"""How long a client waits for the first message. The service is busy or stopped if it takes longer."""
LONGEST_COMMAND = 4096
"""Characters of the command line that the service learns, to show them."""
_MOST_FILES = 4
_ATTEMPTS = 2
_CREDENTIALS = struct.Struct("3i")
_POLLRDHUP = 0x2000


class ServiceConnection:
    """One end of a connection. Several threads may send; one may receive."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def peer(self) -> tuple[int, int]:
        """The pid and user of the process that connected, or that listened; the pid is 0 if it cannot be seen from here."""
        found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(found)
        return pid, uid

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> bool:
        """Send a message; False if the peer is gone, or so far behind that its buffer is full. Never waits."""
        packet = json.dumps(message).encode()
        try:
            sent = socket.send_fds(self._socket, [packet], list(files), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            self.close_sending()
            return False
        return sent == len(packet)

    def receive(self, *, wait: bool = True) -> tuple[dict[str, Any], list[int]] | None:
        """The next message with its files, or None when the peer has gone. UsageError for what is not a message.

        Raises BlockingIOError without `wait` while there is none.
        """
        flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
        try:
            try:
                packet, files, state, _ = socket.recv_fds(self._socket, LONGEST + 1, _MOST_FILES, flags)
            except (
                ConnectionResetError
            ):  # the peer closed without reading all; what it sent before comes after this error
                packet, files, state, _ = socket.recv_fds(self._socket, LONGEST + 1, _MOST_FILES, flags)
        except ConnectionError:
            return None
        if not packet:
            return None
        try:
            if len(packet) > LONGEST or state & socket.MSG_TRUNC:
                raise UsageError(f"a message is longer than {LONGEST} bytes")
            message = json.loads(packet)
            json.dumps(message, ensure_ascii=False).encode()  # half a character cannot be stored or printed
            if not isinstance(message, dict):
                raise UsageError("a message is not a JSON object")
        except (ValueError, RecursionError) as error:
            _close_all(files)
            raise UsageError("a message is not JSON") from error
        except UsageError:
            _close_all(files)
            raise
        return message, files

    def await_answer(self, seconds: float) -> None:
        """Sleep until the peer has sent something or has gone. Raises ServiceUnavailable after so many seconds."""
        if not self.answers_within(seconds):
            raise ServiceUnavailable(
                f"the service has not answered within {seconds:g} s",
                hint="run the command again; if the service still does not answer, ask an administrator to restart it",
            )

    def answers_within(self, seconds: float) -> bool:
        """Whether the peer has sent something, or has gone, after at most so many seconds."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def await_end(self, process: int, seconds: float) -> bool:
        """Sleep until the peer has sent something or has gone; False if it stays silent for so long after that process's end.

        `process` is a pidfd.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(process, select.POLLIN)
        if self._socket.fileno() in dict(poll.poll()):
            return True
        poll.unregister(process)
        return bool(poll.poll(seconds * 1000))

    def await_hangup(self, process: int, stop: int) -> bool:
        """Sleep until the peer has gone, or until the descriptor `stop` is readable; returns whether the peer has gone.

        It has gone when it has closed the connection, or when the process of that pidfd has ended.
        """
        poll = select.poll()
        poll.register(self._socket, _POLLRDHUP)
        for each in (process, stop):
            poll.register(each, select.POLLIN)
        ready = dict(poll.poll())
        return stop not in ready

    def close_sending(self) -> None:
        """Tell the peer that nothing more comes; what it still sends can be received."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _close_all(files: Sequence[int]) -> None:
    for each in files:
        os.close(each)


def connect(path: Path) -> ServiceConnection:
    """A connection to the service. ServiceUnavailable if none listens; PermissionDenied if it is another user's."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        end.connect(str(path))
    except OSError as error:
        end.close()
        raise ServiceUnavailable(
            f"the service of this machine does not answer at {path}: {error.strerror}",
            hint="the service may still be starting; if not, ask an administrator to start it: tranche serve",
        ) from error
    connection = ServiceConnection(end)
    _, uid = connection.peer()
    if uid not in (0, path.parent.stat().st_uid):
        connection.close()
        raise PermissionDenied(
            f"user {uid} listens at {path}, but the folder belongs to another user",
            hint="ask an administrator to remove the socket and to start the service",
        )
    return connection


def ask(path: Path, method: str, seconds: float) -> tuple[dict[str, Any], list[bytes]]:
    """The service's answer to a question without parameters, and the contents of its files.

    Asks once more if the service's process ends without an answer, for example because the service is being replaced.
    Raises the error that the service met, and ServiceUnavailable if none listens, or none answers within so many seconds.
    """
    for _ in range(_ATTEMPTS):
        connection = connect(path)
        try:
            connection.send({"version": VERSION, "method": method, "parameters": {}})
            connection.await_answer(seconds)
            received = connection.receive()
        finally:
            connection.close()
        if received is None:
            continue
        message, files = received
        contents = []
        for each in files:
            with open(each, "rb") as file:
                contents.append(file.read())
        if message.get("event") == "error":
            raise error_of(message)
        return message, contents
    raise ServiceUnavailable(f"the service ended before it sent the {method}", hint="run the command again")


def listen(path: Path) -> socket.socket:
    """A socket that every user of the machine may connect to; replaces one that a dead service left.

    Raises UsageError if something is in the way.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot listen at {path}: {error.strerror}", hint="remove what is there") from error
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o111)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(128)
    return listener


def error_of(message: Mapping[str, Any]) -> TrancheError:
    """The error that the service met; one of an unknown reason is as general as it can be."""
    kinds = {each.reason: each for each in all_errors()}
    kind = kinds.get(str(message.get("reason")), TrancheError)
    return kind(str(message.get("message", "")), hint=str(message.get("hint", "")))
