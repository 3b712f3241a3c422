"""Watches the daemon that keeps a share's limits for as long as the share's command runs: a dead one limits nobody."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from tranche.core.allocation import Allocation, Part
from tranche.core.sharing import Sharing
from tranche.node.mps_records import DaemonRecords


@contextmanager
def watching_limits(allocation: Allocation, records: DaemonRecords, lost: Callable[[], None]) -> Iterator[None]:
    """Call `lost`, from another thread, at the moment in which a daemon of the allocation dies within the block."""
    pids = _daemons(allocation, records)
    if not pids:
        yield
        return
    with ExitStack() as stack:
        watched = []
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                lost()
                continue
            stack.callback(os.close, descriptor)
            watched.append(descriptor)
        reading, writing = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, reading)
        thread = threading.Thread(target=_watch, args=(watched, reading, lost), name="limits", daemon=True)
        # The thread takes no signal: those of the terminal are for the command.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            yield
        finally:
            os.close(writing)
            thread.join()


def _daemons(allocation: Allocation, records: DaemonRecords) -> list[int]:
    by_mps = [each for each in allocation.grants if isinstance(each, Part) and each.sharing is Sharing.MPS]
    found = (records.find(part.gpu_uuid, part.slot) for part in by_mps)
    return [record.pid for record in found if record is not None]


def _watch(daemons: Sequence[int], ended: int, lost: Callable[[], None]) -> None:
    poll = select.poll()
    for descriptor in (*daemons, ended):
        poll.register(descriptor, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll()}
    if not ready.isdisjoint(daemons):
        with suppress(Exception):  # a watch that fails must not end the command
            lost()
