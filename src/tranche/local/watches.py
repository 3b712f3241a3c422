"""The watches over a share while its command runs, each in its own thread.

The daemon that keeps the share's limits: a dead daemon limits nothing, and neither does one whose limits were changed. Its
servers: the daemon lives on when one ends under the share's programs. A server that has ended stays a child of its daemon until
the daemon takes note of it; a stopped daemon takes note of none.

How much of a device's memory the share's processes use together.

Programs of the command that use a device outside the share: only variables confine a program to its share, and sudo, `su -` and
their like drop them. The driver is asked only while the command has a process without these variables, or one whose environment
this user may not read.

Reservations of its GPUs for others, or for maintenance, that begin before the share must have ended.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from itertools import count

from tranche.core.allocation import HELD, Allocation, FractionalShare, parts_by
from tranche.core.errors import VerificationFailed
from tranche.core.keeper import ProcessKeeper
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState, GpuProcess, GpuState, InstanceKey, NodeState
from tranche.hardware.process_stat import process_environment
from tranche.local.child import beside
from tranche.node.host import Host
from tranche.node.limits.overdrawn import excess
from tranche.node.mps.mps_daemons import what_changed
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore
from tranche.node.state.session import children_pids, process_start_time, sees_every_process
from tranche.node.store import records, register
from tranche.planning.decide.time_limits import free_by


class ServerEndWatch:
    """Watches the servers of daemons, given by the daemons' pids, beside whatever else `poll` waits for."""

    def __init__(self, daemons: Sequence[int], poll: select.poll) -> None:
        self._daemons = daemons
        self._poll = poll
        self._servers: dict[int, int] = {}  # pids by descriptors, which become readable when the process ends
        self._seen: set[tuple[int, int]] = set()  # pids with start times, including ended ones

    def look(self) -> None:
        """Watch the servers started since the last look, too."""
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
        """The pids of servers that have ended, among the readable descriptors; each is named once."""
        gone = [descriptor for descriptor in ready if descriptor in self._servers]
        for descriptor in gone:
            self._poll.unregister(descriptor)
            os.close(descriptor)
        return tuple(sorted(self._servers.pop(descriptor) for descriptor in gone))

    def close(self) -> None:
        """Stop watching."""
        self.take(tuple(self._servers))


_AGAIN = "run the command again"
_LOOK_SECONDS = 5.0
_DIED = "the MPS daemon of this share has died, so nothing limits its memory"
_ASK_EVERY = 6
"""In looks: asking a daemon means starting programs."""


@contextmanager
def watching_limits(
    allocation: Allocation,
    records: DaemonRecordStore,
    lost: Callable[[str], None],
    changed: Callable[[DaemonRecord], bool] = lambda record: record.changed,
    server_ended: Callable[[int], None] = lambda pid: None,
) -> Iterator[None]:
    """Call `lost`, from another thread and once, with the reason in words, when a daemon of the allocation dies within the block.

    Also when its limits were changed, as its record or `changed` of that record says. `server_ended` receives the pid of each of
    its servers that ends within the block while the daemon lives on. Raises VerificationFailed if a daemon is dead before the
    block: nothing may start there without its limits.
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
                        f"the limits of this share's MPS daemon were changed{what}: Tranche now counts it as unlimited"
                    )
            return ""

        for daemon in daemons:
            try:
                descriptor = os.pidfd_open(daemon.pid)
            except ProcessLookupError as error:
                raise _died(daemon) from error
            stack.callback(os.close, descriptor)
            # The pid may belong to another process by now; the descriptor's meaning cannot change any more.
            if daemon.state not in (DaemonState.READY, DaemonState.FAULT):
                raise _died(daemon)
            watched.append(descriptor)
        poll = select.poll()
        servers = stack.enter_context(closing(ServerEndWatch([each.pid for each in daemons], poll)))
        servers.look()  # before the command begins: the thread's first look may come after a server has ended
        with beside("limits", lambda ended: _watch(poll, servers, watched, ended, lost, altered, server_ended)):
            yield


def _daemons(allocation: Allocation, records: DaemonRecordStore) -> list[DaemonRecord]:
    found = []
    for part in parts_by(Sharing.MPS, allocation.grants):
        record = records.find(part.gpu_uuid, part.slot)
        if record is None or not record.ready:
            raise VerificationFailed(f"no MPS daemon enforces the limits on {part.gpu_uuid}", hint=_AGAIN)
        found.append(record)
    return found


def _died(daemon: DaemonRecord) -> VerificationFailed:
    return VerificationFailed(
        f"the MPS daemon of {daemon.device_uuid} has just died, so nothing enforces the limits", hint=_AGAIN
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
            with suppress(Exception):  # a failed look must not end the command, and is repeated
                why = altered(look % _ASK_EVERY == 0)
        if why:
            with suppress(Exception):
                lost(why)
        if why or ended in ready:
            return


def _looking(
    name: str, look: Callable[[float], float | None], first: float = _LOOK_SECONDS, patience: float | None = None
) -> AbstractContextManager[None]:
    """Call `look` in a thread beside the block, again and again: it takes the last pause and returns the next, None to end."""

    def watch(ended: int) -> None:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        pause: float | None = first
        while pause is not None and not poll.poll(pause * 1000):
            with suppress(Exception):  # a failed look must not end the command, and is repeated
                pause = look(pause)

    return beside(name, watch, patience)


@contextmanager
def watching_use(
    allocation: Allocation, observe: Callable[[str], GpuState], above: Callable[[FractionalShare, GpuState, int], None]
) -> Iterator[None]:
    """Call `above`, from another thread and once, when the share uses more of a part's device within the block than it was given.

    `above` receives the part, its GPU, and the used bytes.
    """
    parts = [
        each
        for each in allocation.grants
        if isinstance(each, FractionalShare) and each.sharing is not Sharing.TIME_SLICING
    ]
    if not parts:
        yield
        return

    def look(seconds: float) -> float | None:
        for part in parts:
            gpu = observe(part.gpu_uuid)
            if used := excess(allocation, part, gpu):
                above(part, gpu, used)
                return None
        return seconds

    with _looking("use", look):
        yield


_LONGEST_SECONDS = 60.0
_BRIEF_SECONDS = 1.0


def watching_long(begin: Callable[[], Callable[[], float]]) -> AbstractContextManager[None]:
    """Call what `begin` returns, from another thread, a minute after the block began, and again after the seconds it returns.

    `begin` is called as late, because most commands have ended by then. A driver that hangs does not hold up the block's end.
    """
    looks: list[Callable[[], float]] = []

    def look(seconds: float) -> float:
        looks[:] = looks or [begin()]
        return looks[0]()

    return _looking("long", look, _LONGEST_SECONDS, _BRIEF_SECONDS)


@contextmanager
def watching_outside(
    allocation: Allocation,
    visible: str,
    observe: Callable[[], NodeState],
    outside: Callable[[GpuProcess, GpuState], None],
) -> Iterator[None]:
    """Call `outside`, from another thread and once, when a program of the command uses another device within the block.

    `visible` is the variable that confines the command, as in the environment: NAME=VALUE.
    """
    # The driver reports the machine's pids: in a PID namespace they would be other processes.
    if not sees_every_process():
        yield
        return

    def look(seconds: float) -> float | None:
        strays = _unconfined(os.getpid(), os.fsencode(visible))
        if not strays:
            return _LOOK_SECONDS
        if (found := stray_use(allocation, strays, observe())) is not None:
            outside(*found)
            return None
        return min(seconds * 2, _LONGEST_SECONDS)

    with _looking("outside", look):
        yield


def stray_use(allocation: Allocation, pids: set[int], node: NodeState) -> tuple[GpuProcess, GpuState] | None:
    """One of the processes that uses a device outside the allocation, with the device's GPU; None if there is none."""
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
    """The descendants of a process whose environment lacks the variable, or is unreadable."""
    found: set[int] = set()
    for child in children_pids(pid):
        try:
            environment = process_environment(child)
        except PermissionError:
            environment = []
        except OSError:
            continue  # it has ended
        if variable not in environment:
            found.add(child)
        found |= _unconfined(child, variable)
    return found


class ReservationWatch:
    """Looks at the reservations of one share's GPUs. `tell` receives a sentence for each new one that comes too early."""

    def __init__(self, host: Host, allocation: Allocation, tell: Callable[[str], None]) -> None:
        self._host, self._allocation, self._tell = host, allocation, tell
        self._told: set[str] = set()

    def look(self) -> None:
        """Look once. Nobody is told twice of the same reservation, and nobody of their own."""
        with self._host.ledger.read() as db:
            reservations = records.reservations(db)
        now = self._host.allocation(self._allocation.id)
        if now is None or not isinstance(now.keeper, ProcessKeeper):
            return
        uid, held = now.keeper.uid, {each.gpu_uuid for each in now.grants}
        for each in reservations:
            mine = not {str(uid), *register.groups_of(uid)}.isdisjoint(each.users)
            gpus = held.intersection(each.gpu_uuids)
            if each.id in self._told or mine or not gpus or free_by(now) <= each.begins:
                continue
            self._told.add(each.id)
            labels = ", ".join(self._host.observe_gpu(uuid).label for uuid in sorted(gpus))
            what = "this hold" if now.command == HELD else "this command"
            self._tell(f"{labels} {'is' if len(gpus) == 1 else 'are'} {each}; end {what} before then if you can")
