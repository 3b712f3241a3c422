"""Watches the daemon that keeps a share's limits for as long as the share's command runs.

One that is dead limits nobody, and so does one to which somebody has told other limits.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count

from tranche.core.allocation import Allocation, FractionalShare
from tranche.core.errors import VerificationFailed
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState
from tranche.local.server_ends import ServerEndWatch
from tranche.local.side_thread import beside
from tranche.node.mps.mps_health import what_changed
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore

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
