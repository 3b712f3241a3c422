"""Time limits in the queue: when a request can start at the latest, and which later request may start before it.

A command with a time limit may take a GPU that is reserved for an earlier request, if that request can still start as early as
before. This is EASY backfill (Lifka 1995), with the real placements instead of a count of processors. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

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
    _known: dict[tuple[Request, int], float | None] = field(default_factory=dict, compare=False, repr=False)

    def starts_by(self, request: Request, uid: int = -1) -> float | None:
        """When that user's request can start at the latest, if it is the next to start; None if time limits do not tell."""
        asked = request, uid
        if asked not in self._known:
            self._known[asked] = self._starts_by(*asked)
        return self._known[asked]

    def _starts_by(self, request: Request, uid: int) -> float | None:
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

    def after(self, request: Request, granted: Granted, uid: int) -> Foresight:
        """The same after the grant to that user."""
        view = with_granted(replace(self.view, asker=uid), request, granted)
        *others, new = view.allocations
        return Foresight(replace(view, allocations=(*others, new._replace(created=self.now))), self.now)

    def _ending(self) -> Iterator[Allocation]:
        return (each for each in self.view.allocations if self.now <= free_by(each) < math.inf)


Queued = Mapping[str, tuple[Request, int]]
"""The request and the user behind each id for which a GPU is reserved."""


def backfill(
    view: NodeView,
    request: Request,
    reserved: Reserved,
    first: Queued,
    foresight: Foresight,
    *,
    adopt_foreign_destroy: bool = False,
) -> Granted | None:
    """A grant to the view's asker on reserved GPUs that delays none of the `first`, for which they are reserved; or None.

    `foresight` is of the same machine.
    """
    starts = starts_of(reserved, first, foresight)
    for granted in _grants(view, request, reserved, starts, adopt_foreign_destroy) if starts else ():
        used = {each.gpu_uuid for each in (*granted.grants, *granted.plan.steps)}
        passed = {reserved[uuid] for uuid in used if uuid in reserved}
        after = foresight.after(request, granted, view.asker)
        if all(each in starts and after.fits(*first[each], starts[each]) for each in passed):
            return granted
    return None


def starts_of(reserved: Reserved, first: Queued, foresight: Foresight) -> dict[str, float]:
    """When those for whom GPUs are reserved start at the latest, by id, as far as time limits tell; others are never passed."""
    found = {id: foresight.starts_by(*first[id]) for id in dict.fromkeys(reserved.values())}
    return {id: start for id, start in found.items() if start is not None}


def longest_limit(
    view: NodeView, request: Request, reserved: Reserved, first: Queued, foresight: Foresight
) -> int | None:
    """The longest time limit, in whole minutes, with which `backfill` would grant the request; None if none would."""
    for start in sorted(set(starts_of(reserved, first, foresight).values()), reverse=True):
        limit = int(start - foresight.now - _CUT_SECONDS - 2 * GRACE_SECONDS) // 60 * 60
        if limit > 0 and backfill(view, replace(request, time_limit=limit), reserved, first, foresight) is not None:
            return limit
    return None


def _grants(
    view: NodeView, request: Request, reserved: Reserved, starts: Collection[str], adopt_foreign_destroy: bool
) -> Iterator[Granted]:
    """What the request would get on all GPUs but those of waiters without known `starts`, and then on all but one of them."""
    closed = {uuid: id for uuid, id in reserved.items() if id not in starts}
    found = decide(view, request, adopt_foreign_destroy=adopt_foreign_destroy, reserved=closed)
    if not isinstance(found, Granted):
        return
    yield found
    for open_gpu in (uuid for uuid in reserved if uuid not in closed):
        others = {uuid: id for uuid, id in reserved.items() if uuid != open_gpu}
        other = decide(view, request, adopt_foreign_destroy=adopt_foreign_destroy, reserved=others)
        if isinstance(other, Granted):
            yield other
