"""Ends preemptible commands for a request that waits: their time limit becomes the time for which they have run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from tranche.core.allocation import Allocation, NodeView
from tranche.core.keeper import ProcessKeeper
from tranche.local.time_limit import own_processes
from tranche.node.claims import processes_of
from tranche.node.host import Host
from tranche.node.processes.processes import ancestors_of
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
    if ended and (spared := _beside_strangers(host, view)):
        ended = to_preempt(view, waiters, waiter_id, now, spared)
    if not ended:
        return ()
    limits = {each.id: _limit_now(each) for each in ended}
    if any(each.request.time_limit != limits[each.id] for each in ended):
        with host.ledger.write() as db:
            for each in ended:
                if each.request.time_limit != limits[each.id]:
                    register.set_request(db, each.id, replace(each.request, time_limit=limits[each.id]))
                    chronicle.preempted(db, now, each.id, waiter_id)
    return tuple(limits)


def _limit_now(allocation: Allocation) -> int:
    """The time for which its command has run, or its earlier limit: asking again does not give it more time."""
    begun = allocation.keeper.begun / _TICKS if isinstance(allocation.keeper, ProcessKeeper) else 0.0
    run_for = max(1, int(boot_clock() - begun))
    before = allocation.request.time_limit
    return run_for if before is None else min(run_for, before)


def _beside_strangers(host: Host, view: NodeView) -> frozenset[str]:
    """The preemptible shares with a process of somebody else on their devices: their end would free nothing."""
    return frozenset(
        each.id for each in view.allocations if each.request.preemptible and _has_stranger(host, view, each)
    )


def _has_stranger(host: Host, view: NodeView, allocation: Allocation) -> bool:
    there = {each.pid for each in processes_of(allocation.grants, view)}
    own = set(own_processes(host, allocation)) if there else set[int]()
    return any(not own.intersection(ancestors_of(pid)) for pid in there - own)
