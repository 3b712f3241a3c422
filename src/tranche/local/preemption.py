"""Ends preemptible commands for a request that waits: their time limit becomes the time for which they have run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from tranche.core.allocation import NodeView
from tranche.core.keeper import ProcessKeeper
from tranche.node.host import Host
from tranche.node.state.session import boot_clock
from tranche.node.store import chronicle, register
from tranche.planning.decide.preempt import to_preempt
from tranche.planning.decide.queue import WaitingRequest

_TICKS = os.sysconf("SC_CLK_TCK")


def preempt(
    host: Host, view: NodeView, waiters: Sequence[WaitingRequest], waiter_id: str, now: float
) -> tuple[str, ...]:
    """End the commands that the waiter needs to end at the time `now`, in seconds since the epoch; returns their shares' ids.

    The `waiters` are in the order of service. Call it while no other process decides.
    """
    ended = to_preempt(view, waiters, waiter_id, now)
    if not ended:
        return ()
    with host.ledger.write() as db:
        for each in ended:
            begun = each.keeper.begun / _TICKS if isinstance(each.keeper, ProcessKeeper) else 0.0
            run_for = max(1, int(boot_clock() - begun))
            register.set_request(db, each.id, replace(each.request, time_limit=run_for))
            chronicle.preempted(db, now, each.id, waiter_id)
    return tuple(each.id for each in ended)
