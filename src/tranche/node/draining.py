"""Clients of MPS are drained before they are killed: one that dies in the middle of a kernel can take its neighbours with it.

The server ends their contexts, and their next call of CUDA fails.
"""

from __future__ import annotations

from tranche.core.allocation import Allocation, Part
from tranche.core.sharing import Sharing
from tranche.node.mps_daemons import MpsDaemons


def drain(daemons: MpsDaemons, allocation: Allocation, pids: set[int]) -> bool:
    """End the contexts of these processes of the allocation; whether every server did.

    A server that does not within its time lets nobody more in from here on, and no more does a daemon that does not answer.
    """
    drained = True
    if not pids:
        return drained
    for grant in allocation.grants:
        if not isinstance(grant, Part) or grant.sharing is not Sharing.MPS:
            continue
        record = daemons.records.find(grant.gpu_uuid, grant.slot)
        if record is None:
            continue
        clients = daemons.clients(record.device_uuid)
        if clients is None:
            daemons.fence(record, "it did not say who its clients are when some were to be ended")
            drained = False
            continue
        for server, client in clients:
            if client in pids:
                drained = daemons.terminate(record, server, client) and drained
    return drained
