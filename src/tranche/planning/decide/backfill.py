"""Time limits in the queue: when a request can start at the latest, and which later request may start before it.

A command with a time limit may take a GPU that is reserved for an earlier request, if that request can still start as early as
before. This is EASY backfill (Lifka 1995), with the real placements instead of a count of processors. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.core.request import Request
from tranche.planning.decide.allocate import Granted, decide
from tranche.planning.decide.answers import Reserved
from tranche.planning.decide.foresee import with_granted, without
from tranche.planning.decide.reservations import is_for
from tranche.planning.decide.time_limits import GRACE_SECONDS, can_be_preempted, free_by, longest_before

_FAR_SECONDS = 2.5e11
"""Since the epoch: later than any end."""
_LATE_SECONDS = 60.0
"""How late a waiting command may notice that it can start, if no other command's end wakes it."""
_PREEMPTED_SECONDS = 2 * GRACE_SECONDS
"""How long the end of a preempted command may take. It begins before those end that reach their time limits soon."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """What is to come on a machine at the time `now`, in seconds since the epoch, if all commands end by their time limits.

    A command whose time is over, but which still holds its share, may hold it for ever. So may those that a reservation is for.
    `preempting` counts preemptible commands as ending for requests that are not. That is a time before which nobody may delay a
    request, but no promise: a stranger's process may keep such a share in use.
    """

    view: NodeView
    now: float
    _known: dict[tuple[Request, int, bool], float | None] = field(default_factory=dict, compare=False, repr=False)

    def starts_by(self, request: Request, uid: int = -1, *, preempting: bool = False) -> float | None:
        """When that user's request can start at the latest, if it is the next to start; None if time limits do not tell."""
        asked = request, uid, preempting
        if asked not in self._known:
            self._known[asked] = self._starts_by(*asked)
        return self._known[asked]

    def _starts_by(self, request: Request, uid: int, preempting: bool) -> float | None:
        ends = sorted({*self._ends(request, preempting).values()})
        if self.view.reservations:  # which also close GPUs, so a later time may be worse
            bounds = {time for each in self.view.reservations for time in (each.begins, each.ends) if time > self.now}
            return next((time for time in sorted({*ends, *bounds}) if self.fits(request, uid, time, preempting)), None)
        if not ends or not self.fits(request, uid, ends[-1], preempting):
            return None
        return ends[bisect_left(ends, True, hi=len(ends) - 1, key=lambda end: self.fits(request, uid, end, preempting))]

    def fits(self, request: Request, uid: int, time: float, preempting: bool) -> bool:
        """Whether that user's request can start at that time."""
        ended = [id for id, end in self._ends(request, preempting).items() if end <= time]
        view = without(replace(self.view, asker=uid), ended)
        try:
            if not view.reservations:
                return isinstance(decide(view, request), Granted)
            lasting = (
                each._replace(ends=_FAR_SECONDS, used=True) if each.users and not is_for(each, view, uid) else each
                for each in view.reservations
            )
            view = replace(view, reservations=tuple(lasting))
            there = (replace(view, time=late) for late in (time, time + _LATE_SECONDS))
            return all(isinstance(decide(each, request), Granted) for each in there)
        except TrancheError:
            return False

    def after(self, request: Request, granted: Granted, uid: int) -> Foresight:
        """The same after the grant to that user."""
        view = with_granted(replace(self.view, asker=uid), request, granted)
        *others, new = view.allocations
        return Foresight(replace(view, allocations=(*others, new._replace(created=self.now))), self.now)

    def _ends(self, request: Request, preempting: bool) -> dict[str, float]:
        """When the allocations end at the latest, by id, as far as that is known."""
        soon = self.now + _PREEMPTED_SECONDS if preempting and not request.preemptible else math.inf
        ends = ((each, free_by(each)) for each in self.view.allocations)
        found = {each.id: min(end, soon) if can_be_preempted(each) else end for each, end in ends if end >= self.now}
        return {id: end for id, end in found.items() if end < math.inf}


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
        if all(each in starts and _no_later(first[each], foresight, after) for each in passed):
            return granted
    return None


def _no_later(asked: tuple[Request, int], before: Foresight, after: Foresight) -> bool:
    """Whether that user's request can start as early as before, with preemption and, as it may be told, without."""
    starts = ((preempting, before.starts_by(*asked, preempting=preempting)) for preempting in (True, False))
    return all(start is None or after.fits(*asked, start, preempting) for preempting, start in starts)


def starts_of(reserved: Reserved, first: Queued, foresight: Foresight) -> dict[str, float]:
    """When those for whom GPUs are reserved start at the latest, by id, as far as time limits tell; others are never passed."""
    found = {id: foresight.starts_by(*first[id], preempting=True) for id in dict.fromkeys(reserved.values())}
    return {id: start for id, start in found.items() if start is not None}


def longest_limit(
    view: NodeView, request: Request, reserved: Reserved, first: Queued, foresight: Foresight
) -> int | None:
    """The longest time limit, in whole minutes, with which the request would start now; None if no limit would do."""
    starts = {*starts_of(reserved, first, foresight).values(), *(each.begins for each in view.reservations)}
    for start in sorted(starts, reverse=True):
        if limit := longest_before(start, foresight.now):
            limited = replace(request, time_limit=limit)
            if isinstance(decide(view, limited, reserved=reserved), Granted):
                return limit
            if backfill(view, limited, reserved, first, foresight) is not None:
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
