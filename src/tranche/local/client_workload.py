"""The command of a client of the service: a child of the process at the other end of the connection."""

from __future__ import annotations

import inspect
import os
import select
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from tranche.core.errors import UsageError, WaitTimeout
from tranche.core.printable import one_line
from tranche.core.request import Request, parse_request, parse_time_limit
from tranche.local.child import beside
from tranche.node.held import HeldAllocation
from tranche.node.locks.deciding import WaitLimit
from tranche.node.processes.processes import Process, children_of
from tranche.node.state.connection import LONGEST_COMMAND, VERSION, ServiceConnection
from tranche.node.state.session import process_stopped
from tranche.node.store.register import user_name

CLIENT_GONE = 128 + signal.SIGHUP
"""The exit code of a command whose client has gone, and so cannot tell it."""
_TELLS_WITHIN_SECONDS = 30.0
_CONTINUED_AFTER_SECONDS = 1.0
_STARTS_WITHIN_SECONDS = 30.0


class ClientProcess(NamedTuple):
    """The process that connected, by its pid and its user as the kernel knew them then.

    `handle` is a pidfd: it tells the process from a later one with the same pid.
    """

    pid: int
    uid: int
    handle: int

    @property
    def lives(self) -> bool:
        """Whether the process has not ended, so that the pid is still its own."""
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        return not poll.poll(0)

    def resume(self) -> None:
        """Continue it if it is stopped."""
        if process_stopped(self.pid):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGCONT)

    def children(self) -> tuple[Process, ...]:
        """Its living children, oldest first; none once it has ended, because the pid may be another process's then."""
        found = children_of(self.pid)
        return found if self.lives else ()

    def __str__(self) -> str:
        return f"{user_name(self.uid)} (uid {self.uid}, pid {self.pid})"


class ClientWorkload:
    """The command of a client: a child of the process at the other end of the connection."""

    def __init__(self, connection: ServiceConnection, peer: ClientProcess, text: str) -> None:
        self._connection, self._peer = connection, peer
        self.pid, self.uid, self.text = peer.pid, peer.uid, text
        self._others: frozenset[Process] = frozenset()
        self._admitted = False
        self._stack = ExitStack()

    def note_children(self) -> None:
        """Note the client's children."""
        self._others = frozenset(self._peer.children())

    def orphans(self) -> tuple[Process, ...]:
        """The client's living children of later; none before the command starts, and once the client has ended."""
        if not self._admitted:
            return ()
        return tuple(each for each in self._peer.children() if each not in self._others)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within the block, until the command starts, end this process's wait as SIGTERM does when the client has gone."""

        def watch(stop: int) -> None:
            if self._connection.await_hangup(self._peer.handle, stop):
                os.kill(os.getpid(), signal.SIGTERM)

        with self._stack:
            self._stack.enter_context(beside("client", watch))
            yield

    def run(
        self,
        held: HeldAllocation,
        variables: Mapping[str, str],
        started: Callable[[int], None],
        starting: Callable[[], None],
    ) -> int:
        """Let the client start the command, and return the exit code that the client tells; that of SIGHUP if it goes.

        A client that is stopped when its command ends cannot tell, so it is continued; one that stays silent counts as gone. The
        command waits until its pid is registered and it is in the share's control group. Raises WaitTimeout when the client does
        not start it, as while it is stopped: then nothing runs in the share, and the client's copy of the lock keeps nobody out.
        """
        starting()
        self._stack.close()
        granted = {"event": "granted", "allocation": held.allocation.id, "environment": dict(variables)}
        self._connection.send(granted, [held.lock.descriptor])
        if not self._connection.answers_within(_STARTS_WITHIN_SECONDS):
            held.lock.unlock()
            raise WaitTimeout(
                f"the command did not start within {_STARTS_WITHIN_SECONDS:g} s of getting its share, so Tranche took the share "
                "back",
                hint="run the command again; do not stop it before it has started",
            )
        pid = self._told("started")
        if pid is None or not self._peer.lives:
            return CLIENT_GONE
        child = next((each for each in self._peer.children() if each.pid == pid), None)
        if child is None:
            raise UsageError(f"process {pid} is not a child of process {self._peer.pid}, which asked for the share")
        if held.group is not None:
            from tranche.hardware.control_groups import move_into  # seldom needed

            move_into(held.group.folder, child.pid)
        started(child.pid)
        self._admitted = True
        self._connection.send({"event": "admitted"})
        with suppress(ProcessLookupError), open(os.pidfd_open(child.pid), "rb") as command:
            if not self._connection.await_end(command.fileno(), _CONTINUED_AFTER_SECONDS):
                self._peer.resume()
                if not self._connection.await_end(command.fileno(), _TELLS_WITHIN_SECONDS):
                    return CLIENT_GONE
        code = self._told("ended")
        return CLIENT_GONE if code is None else code

    def _told(self, what: str) -> int | None:
        """The number that the client sends under that name; None when the client has gone or sends anything else."""
        try:
            received = self._connection.receive()
        except UsageError:
            return None
        if received is None:
            return None
        message, files = received
        for each in files:
            os.close(each)
        number = message.get(what)
        return number if isinstance(number, int) and 0 <= number < 2**31 else None


_LONGEST_OPTION = 256
_LONGEST_WAIT_SECONDS = 1e9
OPTIONS = frozenset(inspect.signature(parse_request).parameters)
"""The options of a request, as `tranche run` has them with underscores."""


def method_of(message: Mapping[str, Any]) -> str:
    """What the client wants; UsageError for what this version does not know."""
    if type(message.get("version")) is not int or message["version"] != VERSION:
        raise UsageError(
            f"the service uses version {VERSION} of the protocol, but this command uses version {message.get('version')!r}",
            hint="use the version of Tranche that the service runs",
        )
    method = str(message.get("method"))[:_LONGEST_OPTION]
    if method not in ("run", "extend", "ledger", "node"):
        raise UsageError(f"the service has no method {method!r}", hint="its methods are run, extend, ledger and node")
    if method in ("ledger", "node") and (
        unknown := sorted(map(str, set(message) - {"version", "method", "parameters"}))
    ):
        raise UsageError(f"the request has unknown fields: {one_line(', '.join(unknown))}")
    return method


def parse_extension(message: Mapping[str, Any]) -> tuple[str, int]:
    """The allocation and the seconds that the message names; UsageError for anything else."""
    match message:
        case {"parameters": {"allocation": str(allocation_id), "time": str(text), **more}, **rest} if (
            not more and set(rest) == {"version", "method"} and len(allocation_id) + len(text) <= _LONGEST_OPTION
        ):
            return allocation_id, parse_time_limit(text)
    raise UsageError("the request lacks a field, or a field has the wrong type")


def parse_run(message: Mapping[str, Any]) -> tuple[Request, str, WaitLimit, bool]:
    """The request in the message, its command, its patience, and whether it is for containers.

    UsageError for what this version does not understand.
    """
    match message:
        case {
            "parameters": {
                "request": {**options},
                "command": str(command),
                "wait": bool(wait),
                "timeout": None | int() | float() as timeout,
                **more,
            },
            **rest,
        } if not isinstance(timeout, bool) and all(
            isinstance(each, str) and len(each) <= _LONGEST_OPTION for each in options.values()
        ):
            if cdi := more.get("cdi") is True:
                del more["cdi"]
            unknown = sorted(map(str, {*more, *rest, *(set(options) - OPTIONS)} - {"version", "method"}))
            if unknown:
                raise UsageError(f"the request has unknown fields: {one_line(', '.join(unknown))}")
            seconds = None if timeout is None else float(timeout)
            if seconds is not None and not 0 <= seconds < _LONGEST_WAIT_SECONDS:
                raise UsageError(f"the timeout {timeout} s is out of range")
            named: Mapping[str, Any] = {str(name): text for name, text in options.items()}
            return parse_request(**named), command[:LONGEST_COMMAND], WaitLimit(wait=wait, seconds=seconds), cdi
    raise UsageError("the request lacks a field, or a field has the wrong type")
