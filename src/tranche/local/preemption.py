"""Ends preemptible commands for a request that waits: their time limit becomes the time for which they have run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tranche.core.allocation import Allocation, FractionalShare, NodeView
from tranche.core.keeper import ProcessKeeper
from tranche.local.time_limit import processes_of
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
    there = set(_on_devices(view, allocation))
    own = set(processes_of(host, allocation)) if there else set[int]()
    return any(not own.intersection(ancestors_of(pid)) for pid in there - own)


def _on_devices(view: NodeView, allocation: Allocation) -> Iterator[int]:
    """The processes on the devices that the allocation has for itself."""
    for grant in allocation.grants:
        gpu = next((each for each in view.node if each.uuid == grant.gpu_uuid), None)
        if gpu is None or isinstance(grant, FractionalShare):
            continue
        if grant.slot is None:
            yield from (each.pid for each in gpu.all_processes)
        elif (instance := gpu.instance_in(grant.slot.place)) is not None:
            inside = (each for device in instance.compute_instances for each in device.processes)
            yield from (each.pid for each in (*inside, *instance.stray_processes))
