"""Which preemptible commands end so that a waiting request can start. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tranche.core.allocation import Allocation, NodeView
from tranche.core.errors import TrancheError
from tranche.planning.decide.allocate import Granted, decide
from tranche.planning.decide.answers import Reserved
from tranche.planning.decide.foresee import with_granted, without
from tranche.planning.decide.queue import WaitingRequest, at, for_user, held_up, in_time
from tranche.planning.decide.time_limits import GRACE_SECONDS, can_be_preempted, free_by


def to_preempt(
    view: NodeView,
    waiters: Sequence[WaitingRequest],
    waiter_id: str,
    now: float,
    spared: Collection[str] = (),
) -> tuple[Allocation, ...]:
    """The shares to end now for that waiter, which waits at the time `now`; none if that would not let it start.

    `waiters` are in the order of service, and the time is in seconds since the epoch. What ends by itself in the next seconds is
    not ended for anybody, and the allocations in `spared` never. Each waiter ahead gets first what it can start with, in the same
    way.
    """
    view = at(view, now)
    view = without(view, [each.id for each in view.allocations if _ends_soon(each, now)])
    reserved: dict[str, str] = {}
    for waiter in in_time(view, waiters):
        mine = waiter.id == waiter_id
        if waiter.request.preemptible or len(reserved) == len(view.node.gpus):
            return ()
        if waiter.silent and not mine:
            continue
        ended: tuple[Allocation, ...] = ()
        granted = _granted(view, waiter, reserved)
        if granted is None:
            ended = _needed(view, waiter, reserved, spared)
            granted = _granted(_after(view, ended), waiter, reserved) if ended else None
        if mine:
            return ended
        if granted is None:
            for uuid in held_up(for_user(view, waiter), waiter.request):
                reserved.setdefault(uuid, waiter.id)
            continue
        view = with_granted(for_user(_after(view, ended), waiter), waiter.request, granted)
    return ()


def _ends_soon(allocation: Allocation, now: float) -> bool:
    """Whether its command is ending, or reaches its time limit before another could be ended; not if it should have ended."""
    limit = allocation.request.time_limit
    return limit is not None and allocation.created + limit - GRACE_SECONDS <= now < free_by(allocation)


def _needed(
    view: NodeView, waiter: WaitingRequest, reserved: Reserved, spared: Collection[str]
) -> tuple[Allocation, ...]:
    """Preemptible shares, none of them needless, after the end of which the waiter can start: one if one is enough.

    Young ones lose less.
    """
    found = sorted(
        (each for each in view.allocations if can_be_preempted(each) and each.id not in spared),
        key=lambda each: (each.created, each.id),
        reverse=True,
    )
    if _granted(_after(view, found), waiter, reserved) is None:
        return ()
    fewest, most = 1, len(found)
    while fewest < most:
        some = (fewest + most) // 2
        if _granted(_after(view, found[:some]), waiter, reserved) is None:
            fewest = some + 1
        else:
            most = some
    needed = found[:most]
    granted = _granted(_after(view, needed), waiter, reserved)
    if granted is None:  # the end of a share made another place better, and that is taken
        needed, granted = found, _granted(_after(view, found), waiter, reserved)
    gpus = {each.gpu_uuid for each in granted.grants} if granted is not None else set()
    there = [each for each in needed if any(grant.gpu_uuid in gpus for grant in each.grants)]
    needed = needed if _granted(_after(view, there), waiter, reserved) is None else there
    for each in reversed(needed):
        others = [other for other in needed if other is not each]
        if _granted(_after(view, others), waiter, reserved) is not None:
            needed = others
    if len(needed) > 1:
        alone = (each for each in found[:_TRIED_ALONE] if _granted(_after(view, [each]), waiter, reserved) is not None)
        needed = [one] if (one := next(alone, None)) is not None else needed
    return tuple(needed)


_TRIED_ALONE = 16


def _after(view: NodeView, ended: Sequence[Allocation]) -> NodeView:
    return without(view, {each.id for each in ended})


def _granted(view: NodeView, waiter: WaitingRequest, reserved: Reserved) -> Granted | None:
    try:
        found = decide(for_user(view, waiter), waiter.request, reserved=reserved)
    except TrancheError:
        return None
    return found if isinstance(found, Granted) else None
