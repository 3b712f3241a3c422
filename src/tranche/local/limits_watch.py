"""Watches the daemon that keeps a share's limits for as long as the share's command runs: a dead one limits nobody."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from tranche.core.allocation import Allocation, Part
from tranche.core.errors import VerificationFailed
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState
from tranche.local.side_thread import beside
from tranche.node.mps_records import DaemonRecord, DaemonRecords

_AGAIN = "run the command again"


@contextmanager
def watching_limits(allocation: Allocation, records: DaemonRecords, lost: Callable[[], None]) -> Iterator[None]:
    """Call `lost`, from another thread, at the moment in which a daemon of the allocation dies within the block.

    VerificationFailed when one is dead before the block: nothing may begin there without its limits.
    """
    daemons = _daemons(allocation, records)
    if not daemons:
        yield
        return
    with ExitStack() as stack:
        watched = []
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
        with beside("limits", lambda ended: _watch(watched, ended, lost)):
            yield


def _daemons(allocation: Allocation, records: DaemonRecords) -> list[DaemonRecord]:
    found = []
    for part in allocation.grants:
        if isinstance(part, Part) and part.sharing is Sharing.MPS:
            record = records.find(part.gpu_uuid, part.slot)
            if record is None or not record.ready:
                raise VerificationFailed(f"no MPS daemon keeps the limits on {part.gpu_uuid}", hint=_AGAIN)
            found.append(record)
    return found


def _died(daemon: DaemonRecord) -> VerificationFailed:
    return VerificationFailed(
        f"the MPS daemon of {daemon.device_uuid} has just died: nothing keeps the limits", hint=_AGAIN
    )


def _watch(daemons: Sequence[int], ended: int, lost: Callable[[], None]) -> None:
    poll = select.poll()
    for descriptor in (*daemons, ended):
        poll.register(descriptor, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll()}
    if not ready.isdisjoint(daemons):
        with suppress(Exception):  # a watch that fails must not end the command
            lost()
