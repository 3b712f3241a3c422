"""What is watched for as long as a share's command runs, each by a thread beside it.

The daemon that keeps the share's limits: one that is dead limits nobody, and so does one to which somebody has told other limits.
Its servers: the daemon lives on when one ends under the share's programs. A server that has ended stays a child of its daemon
until that takes note of it, and of one that is stopped for good.
How much of a device's memory the share's processes have together.
Programs of the command that use a device which is not the share's: only variables confine a program to its share, and sudo,
`su -` and their like drop them. The driver is asked only while the command has a process without them, or one whose environment
this user may not read.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path

from tranche.core.allocation import Allocation, FractionalShare
from tranche.core.errors import VerificationFailed
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState, GpuProcess, GpuState, InstanceKey, NodeState
from tranche.node.limits.overdrawn import excess
from tranche.node.mps.mps_health import what_changed
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore
from tranche.node.state.session import children_pids, process_start_time, sees_every_process


@contextmanager
def beside(name: str, work: Callable[[int], None]) -> Iterator[None]:
    """Run `work` in a thread of that name within the block, and wait for it after the block.

    `work` is told a file descriptor that can be read from when the block has ended; it has to return then.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    thread = threading.Thread(target=work, args=(reading,), name=name, daemon=True)
    with ExitStack() as stack:
        stack.callback(os.close, reading)
        stack.callback(lambda: thread.join() if thread.ident else None)
        stack.callback(os.close, writing)
        # Signals of the terminal are for the command.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield


class ServerEndWatch:
    """Watches the servers of daemons, given by the daemons' pids, beside whatever else `poll` waits for."""

    def __init__(self, daemons: Sequence[int], poll: select.poll) -> None:
        self._daemons = daemons
        self._poll = poll
        self._servers: dict[int, int] = {}  # pids by the descriptors that can be read from once they have ended
        self._seen: set[tuple[int, int]] = set()  # pids with start times, also of those that have ended

    def look(self) -> None:
        """Watch the servers that have been started since the last look as well."""
        for pid in {pid for daemon in self._daemons for pid in children_pids(daemon)}:
            server = pid, process_start_time(pid, ended=True)
            if server in self._seen:
                continue
            with suppress(OSError):  # it has ended already, and its daemon knows
                descriptor = os.pidfd_open(pid)
                self._seen.add(server)
                self._servers[descriptor] = pid
                self._poll.register(descriptor, select.POLLIN)

    def take(self, ready: Collection[int]) -> tuple[int, ...]:
        """The pids of the servers that have ended, of the descriptors that can be read from; each is named once."""
        gone = [descriptor for descriptor in ready if descriptor in self._servers]
        for descriptor in gone:
            self._poll.unregister(descriptor)
            os.close(descriptor)
        return tuple(sorted(self._servers.pop(descriptor) for descriptor in gone))

    def close(self) -> None:
        """Watch no more."""
        self.take(tuple(self._servers))


_AGAIN = "run the command again"
_LOOK_SECONDS = 5.0
_DIED = "the MPS daemon of this share has died: nothing limits its memory any more"
_ASK_EVERY = 6
"""In looks: to ask a daemon, programs have to be started."""


@contextmanager
def watching_limits(
    allocation: Allocation,
    records: DaemonRecordStore,
    lost: Callable[[str], None],
    changed: Callable[[DaemonRecord], bool] = lambda record: record.changed,
    server_ended: Callable[[int], None] = lambda pid: None,
) -> Iterator[None]:
    """Call `lost`, from another thread and once, when a daemon of the allocation dies within the block, and say so in words.

    The same when somebody has told it other limits, as others have found out, or `changed` says of its present record.
    `server_ended` is called with the pid of each server of theirs that ends within the block, while its daemon lives on.
    VerificationFailed when one is dead before the block: nothing may begin there without its limits.
    """
    daemons = _daemons(allocation, records)
    if not daemons:
        yield
        return
    with ExitStack() as stack:
        watched = []

        def altered(thorough: bool) -> str:
            for each in daemons:
                record = records.find(each.gpu_uuid, each.slot)
                if record is not None and (record.changed or (thorough and changed(record))):
                    what = what_changed(records.find(each.gpu_uuid, each.slot) or record)
                    return (
                        f"somebody has changed the limits of the MPS daemon of this share{what}: it counts as unlimited"
                    )
            return ""

        for daemon in daemons:
            try:
                descriptor = os.pidfd_open(daemon.pid)
            except ProcessLookupError as error:
                raise _died(daemon) from error
            stack.callback(os.close, descriptor)
            # The pid may be another process's by now; what the descriptor means cannot change any more.
            if daemon.state not in (DaemonState.READY, DaemonState.FAULT):
                raise _died(daemon)
            watched.append(descriptor)
        poll = select.poll()
        servers = stack.enter_context(closing(ServerEndWatch([each.pid for each in daemons], poll)))
        servers.look()  # before the command begins: the thread may come to look when a server has ended already
        with beside("limits", lambda ended: _watch(poll, servers, watched, ended, lost, altered, server_ended)):
            yield


def _daemons(allocation: Allocation, records: DaemonRecordStore) -> list[DaemonRecord]:
    found = []
    for part in allocation.grants:
        if isinstance(part, FractionalShare) and part.sharing is Sharing.MPS:
            record = records.find(part.gpu_uuid, part.slot)
            if record is None or not record.ready:
                raise VerificationFailed(f"no MPS daemon keeps the limits on {part.gpu_uuid}", hint=_AGAIN)
            found.append(record)
    return found


def _died(daemon: DaemonRecord) -> VerificationFailed:
    return VerificationFailed(
        f"the MPS daemon of {daemon.device_uuid} has just died: nothing keeps the limits", hint=_AGAIN
    )


def _watch(
    poll: select.poll,
    servers: ServerEndWatch,
    daemons: Sequence[int],
    ended: int,
    lost: Callable[[str], None],
    altered: Callable[[bool], str],
    server_ended: Callable[[int], None],
) -> None:
    for descriptor in (*daemons, ended):
        poll.register(descriptor, select.POLLIN)
    for look in count(1):
        servers.look()
        ready = {descriptor for descriptor, _ in poll.poll(_LOOK_SECONDS * 1000)}
        gone = servers.take(ready)
        why = "" if ready.isdisjoint(daemons) else _DIED
        if not why:
            for pid in gone:
                with suppress(Exception):
                    server_ended(pid)
        if not ready:
            with suppress(Exception):  # a look that fails must not end the command, and is made again
                why = altered(look % _ASK_EVERY == 0)
        if why:
            with suppress(Exception):
                lost(why)
        if why or ended in ready:
            return


@contextmanager
def watching_use(
    allocation: Allocation, observe: Callable[[str], GpuState], above: Callable[[FractionalShare, GpuState, int], None]
) -> Iterator[None]:
    """Call `above`, from another thread and once, when more of a part's device is used within the block than was given.

    It is told the part, its GPU, and how many bytes are used.
    """
    parts = [
        each
        for each in allocation.grants
        if isinstance(each, FractionalShare) and each.sharing is not Sharing.TIME_SLICING
    ]
    if not parts:
        yield
        return

    def watch(ended: int) -> None:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        while not poll.poll(_LOOK_SECONDS * 1000):
            with suppress(Exception):  # a look that fails must not end the command, and is made again
                for part in parts:
                    gpu = observe(part.gpu_uuid)
                    if used := excess(allocation, part, gpu):
                        above(part, gpu, used)
                        return

    with beside("use", watch):
        yield


_LONGEST_SECONDS = 60.0


@contextmanager
def watching_outside(
    allocation: Allocation,
    visible: str,
    observe: Callable[[], NodeState],
    outside: Callable[[GpuProcess, GpuState], None],
) -> Iterator[None]:
    """Call `outside`, from another thread and once, when a program of the command uses another device within the block.

    `visible` is the variable that confines the command, as the environment has it: NAME=VALUE.
    """
    # The driver's numbers of processes are the machine's: in a PID namespace they would be those of others.
    if not sees_every_process():
        yield
        return

    def watch(ended: int) -> None:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        seconds = _LOOK_SECONDS
        while not poll.poll(seconds * 1000):
            with suppress(Exception):  # a look that fails must not end the command, and is made again
                strays = _unconfined(os.getpid(), os.fsencode(visible))
                found = stray_use(allocation, strays, observe()) if strays else None
                if found is not None:
                    outside(*found)
                    return
                seconds = min(seconds * 2, _LONGEST_SECONDS) if strays else _LOOK_SECONDS

    with beside("outside", watch):
        yield


def stray_use(allocation: Allocation, pids: set[int], node: NodeState) -> tuple[GpuProcess, GpuState] | None:
    """One of the processes that uses a device of which the allocation has nothing, and the device's GPU; None when none does."""
    own = {(grant.gpu_uuid, grant.slot) for grant in allocation.grants}
    for gpu in node:
        used: list[tuple[InstanceKey | None, tuple[GpuProcess, ...]]] = [(None, gpu.processes)]
        if gpu.instances:
            used = [(gpu.key(instance), instance.processes) for instance in gpu.instances]
        for slot, processes in used:
            if (gpu.uuid, slot) not in own and (found := next((each for each in processes if each.pid in pids), None)):
                return found, gpu
    return None


def _unconfined(pid: int, variable: bytes) -> set[int]:
    """The descendants of a process that do not have the variable in their environment, or do not show it."""
    found: set[int] = set()
    for child in children_pids(pid):
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except PermissionError:
            environment = []
        except OSError:
            continue  # it has ended
        if variable not in environment:
            found.add(child)
        found |= _unconfined(child, variable)
    return found
