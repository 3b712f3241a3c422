"""The command of a client of the service: a child of the process at the other end of the connection."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from tranche.core.errors import UsageError, WaitTimeout
from tranche.local.child import beside
from tranche.node.held import HeldAllocation
from tranche.node.processes.processes import Process, children_of
from tranche.node.state.connection import ServiceConnection
from tranche.node.store.register import user_name

CLIENT_GONE = 128 + signal.SIGHUP
"""The exit code of a command whose client has gone, and so cannot tell it."""
_TELLS_WITHIN_SECONDS = 30.0
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

        A client that is stopped when its command ends cannot tell, and counts as gone soon after. The command waits until its pid
        is registered and it is in the share's control group. Raises WaitTimeout when the client does not start it, as while it
        is stopped: then nothing runs in the share, and the client's copy of the lock keeps nobody out.
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
