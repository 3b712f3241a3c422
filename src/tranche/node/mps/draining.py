"""Clients of MPS are drained before they are killed: one that dies in the middle of a kernel can take its neighbours with it.

The server ends their contexts, and their next call of CUDA fails. Where it does not, they are killed all the same when somebody
insists: the server then lets nobody more in, and whoever killed says so.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from tranche.core.allocation import Allocation, FractionalShare
from tranche.core.sharing import Sharing
from tranche.node.mps.mps_daemons import MpsDaemonManager
from tranche.node.mps.mps_records import DaemonRecord


class UndrainedDevice(NamedTuple):
    """A device whose server did not let go of its clients, by its UUID, and why it did not."""

    device_uuid: str
    why: str


def drain(daemons: MpsDaemonManager, allocation: Allocation, pids: Set[int]) -> tuple[UndrainedDevice, ...]:
    """End the contexts of these processes of the allocation; the devices whose servers did not.

    A server that does not within its time lets nobody more in from here on, and no more does a daemon that does not answer.
    """
    if not pids:
        return ()
    parts = [each for each in allocation.grants if isinstance(each, FractionalShare) and each.sharing is Sharing.MPS]
    records = [daemons.records.find(part.gpu_uuid, part.slot) for part in parts]
    found = [UndrainedDevice(each.device_uuid, _let_go(daemons, each, pids)) for each in records if each is not None]
    return tuple(each for each in found if each.why)


def _let_go(daemons: MpsDaemonManager, record: DaemonRecord, pids: Set[int]) -> str:
    if halted := record.halted:
        return halted  # it answers nobody until it is continued, and need not be waited for
    clients = daemons.health.clients(record.device_uuid)
    if clients is None:
        return daemons.health.fence(record, "it did not say who its clients are when some were to be ended")
    for server, client in clients:
        # A server that did not let go of one lets go of none.
        if client in pids and (why := daemons.health.terminate(record, server, client)):
            return why
    return ""
