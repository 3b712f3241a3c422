"""When commands have ended by their time limits. Pure."""

from __future__ import annotations

import math

from tranche.core.allocation import Allocation
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import Request

GRACE_SECONDS = 30.0
"""How long a command has between SIGTERM and SIGKILL at the end of its time. As long again, others end what is left."""
_CUT_SECONDS = 60.0
"""How long it may take from the grant to the command's start, when the time begins."""


def free_at(request: Request, granted: float) -> float:
    """When a share of the request is free at the latest, in seconds since the epoch; infinity without a time limit."""
    limit = request.time_limit
    return math.inf if limit is None else granted + _CUT_SECONDS + limit + 2 * GRACE_SECONDS


def free_by(allocation: Allocation) -> float:
    """When the share is free at the latest, in seconds since the epoch; infinity without a time limit."""
    return free_at(allocation.request, allocation.created)


def can_be_preempted(allocation: Allocation) -> bool:
    """Whether it is preemptible and its command has started."""
    keeper = allocation.keeper
    return allocation.request.preemptible and isinstance(keeper, ProcessKeeper) and keeper.begun > 0


def longest_before(end: float, now: float) -> int:
    """The longest time limit, in whole minutes, of a share that is granted now and free by `end`; 0 if there is none."""
    return max(0, int(end - now - _CUT_SECONDS - 2 * GRACE_SECONDS) // 60 * 60)
