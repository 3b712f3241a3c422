"""Time limits in the queue: when a request can start at the latest, and which later request may start before it.

A command with a time limit may take a GPU that is reserved for an earlier request, if that request can still start as early as
before. This is EASY backfill (Lifka 1995), with the real placements instead of a count of processors. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tranche.core.allocation import Allocation, NodeView
from tranche.core.errors import TrancheError
from tranche.core.request import Request
from tranche.planning.decide.allocate import Granted, decide
from tranche.planning.decide.answers import Reserved
from tranche.planning.decide.foresee import with_granted, without

GRACE_SECONDS = 30.0
"""How long a command has between SIGTERM and SIGKILL at the end of its time. As long again, others end what is left."""
_CUT_SECONDS = 60.0
"""How long it may take from the grant to the command's start, when the time begins."""


def free_by(allocation: Allocation) -> float:
    """When the share is free at the latest, in seconds since the epoch; infinity without a time limit."""
    limit = allocation.request.time_limit
    return math.inf if limit is None else allocation.created + _CUT_SECONDS + limit + 2 * GRACE_SECONDS


@dataclass(frozen=True, slots=True)
class Foresight:
    """What is to come on a machine at the time `now`, in seconds since the epoch, if all commands end by their time limits.

    A command whose time is over, but which still holds its share, may hold it for ever.
    """

    view: NodeView
    now: float

    def starts_by(self, request: Request, uid: int = -1) -> float | None:
        """When that user's request can start at the latest, if it is the next to start; None if time limits do not tell."""
        ends = sorted({free_by(each) for each in self._ending()})
        if not ends or not self.fits(request, uid, ends[-1]):
            return None
        return ends[bisect_left(ends, True, hi=len(ends) - 1, key=lambda end: self.fits(request, uid, end))]

    def fits(self, request: Request, uid: int, time: float) -> bool:
        """Whether that user's request can start at that time."""
        ended = [each.id for each in self._ending() if free_by(each) <= time]
        view = without(replace(self.view, asker=uid), ended)
        try:
            return isinstance(decide(view, request), Granted)
        except TrancheError:
            return False

    def after(self, request: Request, granted: Granted) -> Foresight:
        """The same after the grant."""
        view = with_granted(self.view, request, granted)
        *others, new = view.allocations
        return replace(self, view=replace(view, allocations=(*others, new._replace(created=self.now))))

    def _ending(self) -> Iterator[Allocation]:
        return (each for each in self.view.allocations if self.now <= free_by(each) < math.inf)


def backfill(
    view: NodeView,
    request: Request,
    reserved: Reserved,
    first: Mapping[str, tuple[int, Request]],
    now: float,
    *,
    adopt_foreign_destroy: bool = False,
) -> Granted | None:
    """A grant on reserved GPUs that delays none of the requests they are reserved for; None without one.

    `first` has the user and the request behind each id in `reserved`.
    """
    before = Foresight(view, now)
    starts: dict[str, float | None] = {}
    for granted in _grants(view, request, reserved, adopt_foreign_destroy):
        used = {each.gpu_uuid for each in (*granted.grants, *granted.plan.steps)}
        passed = {reserved[uuid] for uuid in used if uuid in reserved}
        for each in passed - set(starts):
            uid, wanted = first[each]
            starts[each] = before.starts_by(wanted, uid)
        after = before.after(request, granted)
        if all(_still(after, starts[each], *first[each]) for each in passed):
            return granted
    return None


def longest_limit(
    view: NodeView, request: Request, reserved: Reserved, first: Mapping[str, tuple[int, Request]], now: float
) -> int | None:
    """The longest time limit, in whole minutes, with which `backfill` would grant the request; None if none would."""
    found = (
        Foresight(view, now).starts_by(wanted, uid) for uid, wanted in (first[id] for id in set(reserved.values()))
    )
    for start in sorted({each for each in found if each is not None}, reverse=True):
        limit = int(start - now - _CUT_SECONDS - 2 * GRACE_SECONDS) // 60 * 60
        if limit > 0 and backfill(view, replace(request, time_limit=limit), reserved, first, now) is not None:
            return limit
    return None


def _still(after: Foresight, start: float | None, uid: int, request: Request) -> bool:
    return start is not None and after.fits(request, uid, start)


def _grants(view: NodeView, request: Request, reserved: Reserved, adopt_foreign_destroy: bool) -> Iterator[Granted]:
    """What the request would get if no GPU were reserved, and then if one of them were not."""
    found = decide(view, request, adopt_foreign_destroy=adopt_foreign_destroy)
    if not isinstance(found, Granted):
        return
    yield found
    for open_gpu in reserved:
        others = {uuid: id for uuid, id in reserved.items() if uuid != open_gpu}
        other = decide(view, request, adopt_foreign_destroy=adopt_foreign_destroy, reserved=others)
        if isinstance(other, Granted):
            yield other
