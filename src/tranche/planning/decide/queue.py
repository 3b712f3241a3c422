"""The queue: competitors for a GPU are served in its order, which is that of arrival unless the administrator wants it fair.

A waiter wants every GPU that could serve it, were it empty. A later waiter may start only on GPUs that no earlier one wants. So a
small request never overtakes a large one that waits for the same GPU, and requests for different GPUs never wait for each other.
A waiter that needs more GPUs than are open (not lost, cordoned or faulty) holds none up until that changes. Nor does a waiter
beyond its user's quota, so later requests may pass it, also the same user's. Nor does a waiter hold a GPU up from which a
reservation keeps it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tranche.core.allocation import NodeView
from tranche.core.errors import AllocationUnknown, TrancheError
from tranche.core.request import Request
from tranche.core.user_quota import is_fair, quota_of, within_time
from tranche.planning.decide.allocate import Decision, Granted, decide
from tranche.planning.decide.answers import Reserved
from tranche.planning.decide.candidates import Candidate, check_possible, gpus_needed
from tranche.planning.decide.quota import candidates_within_quota, limits_alike, refuse_beyond_quota, refuse_too_long
from tranche.planning.decide.reservations import closing, is_for
from tranche.planning.decide.time_limits import free_at

if TYPE_CHECKING:
    from tranche.planning.decide.backfill import Foresight, Queued


class WaitingRequest(NamedTuple):
    """A waiting request with its id, and the uid of its user, -1 if unknown.

    The process of a `silent` one does not answer: others need not wait for it, until it does again.
    """

    id: str
    request: Request
    uid: int = -1
    silent: bool = False


def may_start(
    view: NodeView,
    waiters: Sequence[WaitingRequest],
    waiter_id: str,
    *,
    adopt_foreign_destroy: bool = False,
    now: float | None = None,
) -> Decision:
    """What that waiter gets now; `waiters` is in the order of service, and `adopt_foreign_destroy` is that of `decide`.

    A waiter with a time limit may pass earlier ones only with `now`, in seconds since the epoch. Raises AllocationUnknown when
    the id is not among them, and what `decide` raises when the request can never be served.
    """
    view, waiters = at(view, now), in_time(view, waiters)
    for position, waiter in enumerate(waiters):
        if waiter.id == waiter_id:
            ahead = waiters[:position]
            return decide_behind(
                view, waiter, ahead, reserved_for(view, ahead), now, adopt_foreign_destroy=adopt_foreign_destroy
            )
    raise AllocationUnknown(f"no request {waiter_id} is waiting")


def decide_behind(
    view: NodeView,
    waiter: WaitingRequest,
    ahead: Iterable[WaitingRequest],
    reserved: Reserved,
    now: float | None,
    *,
    adopt_foreign_destroy: bool = False,
    foresight: Foresight | None = None,
) -> Decision:
    """What the waiter gets behind those `ahead`, for whom GPUs are `reserved`; the rest as for `may_start`.

    A caller that decides about many waiters may pass the `foresight` of the view, so that it is found once.
    """
    its_view, request = for_user(view, waiter), waiter.request
    refuse_too_long(its_view, request)
    found = decide(its_view, request, adopt_foreign_destroy=adopt_foreign_destroy, reserved=reserved)
    if isinstance(found, Granted) or now is None or not foreseeable(view):
        return found
    from tranche.planning.decide.backfill import Foresight, backfill  # most machines have no time limits

    foresight = foresight or Foresight(view, now)
    if not reserved:
        lasts = _lasts(its_view) and not request.preemptible
        promised = not any(True for _ in ahead) and lasts and _wanted(its_view, request)
        return found._replace(starts_by=foresight.starts_by(request, waiter.uid)) if promised else found
    if request.time_limit is None:
        return found
    passing = backfill(
        its_view, request, reserved, by_id(ahead), foresight, adopt_foreign_destroy=adopt_foreign_destroy
    )
    return found if passing is None else passing


def _lasts(view: NodeView) -> bool:
    """Whether nobody can come before the asker's request once it is first, and whether no quota can stop it by then."""
    hours = (quota_of(view.quotas, view.asker), *map(view.quotas.get, view.groups.get(str(view.asker), ())))
    return not is_fair(view.quotas) and all(each is None or each.gpu_hours is None for each in hours)


def foreseeable(view: NodeView) -> bool:
    """Whether time limits or reservations tell anything of the future; on most machines nothing does."""
    return bool(view.reservations) or any(each.request.time_limit is not None for each in view.allocations)


def by_id(waiters: Iterable[WaitingRequest]) -> Queued:
    """The request and the user behind each id."""
    return {each.id: (each.request, each.uid) for each in waiters}


def reserved_for(view: NodeView, waiters: Iterable[WaitingRequest]) -> dict[str, str]:
    """The UUIDs of the GPUs that the waiters want and may have now, each with the first waiter's id."""
    reserved: dict[str, str] = {}
    for waiter in _first_of_each(view, (each for each in in_time(view, waiters) if not each.silent)):
        if len(reserved) == len(view.node.gpus):
            break
        for uuid in held_up(for_user(view, waiter), waiter.request):
            reserved.setdefault(uuid, waiter.id)
    return reserved


def startable(
    view: NodeView,
    waiters: Iterable[WaitingRequest],
    *,
    adopt_foreign_destroy: bool = False,
    now: float | None = None,
) -> Iterator[str]:
    """The ids of the waiters that may start now, in the order of service; the rest as for `may_start`."""
    view = at(view, now)
    reserved: dict[str, str] = {}
    ahead: list[WaitingRequest] = []
    foresight: Foresight | None = None
    if now is not None and foreseeable(view):
        from tranche.planning.decide.backfill import Foresight  # most machines have no time limits

        foresight = Foresight(view, now)
    # Among equal requests only the first can be startable: it reserves everything the others want.
    for waiter in _first_of_each(view, in_time(view, waiters)):
        if waiter.silent:
            ahead.append(waiter)
            continue
        may_pass = foresight is not None and waiter.request.time_limit is not None
        if len(reserved) == len(view.node.gpus) and not may_pass:
            continue
        wanted = held_up(for_user(view, waiter), waiter.request)
        if wanted and (may_pass or not all(uuid in reserved for uuid in wanted)):
            decision = decide_behind(
                view, waiter, ahead, reserved, now, adopt_foreign_destroy=adopt_foreign_destroy, foresight=foresight
            )
            if isinstance(decision, Granted):
                yield waiter.id
        for uuid in wanted:
            reserved.setdefault(uuid, waiter.id)
        ahead.append(waiter)


def outlooks(view: NodeView, waiters: Iterable[WaitingRequest]) -> Iterator[Decision | TrancheError]:
    """What each waiter gets now, in the order of service, or why it never can."""
    reserved: dict[str, str] = {}
    known: dict[_Alike, Decision | TrancheError] = {}
    for waiter in in_time(view, waiters):
        alike, its_view = _alike(view, waiter), for_user(view, waiter)
        if alike not in known:
            known[alike] = _outlook(its_view, waiter.request, reserved)
        yield known[alike]
        if len(reserved) < len(view.node.gpus):
            before = len(reserved)
            for uuid in held_up(its_view, waiter.request):
                reserved.setdefault(uuid, waiter.id)
            if len(reserved) > before:
                known.clear()


def _outlook(view: NodeView, request: Request, reserved: Reserved) -> Decision | TrancheError:
    try:
        refuse_too_long(view, request)
        return decide(view, request, reserved=reserved)
    except TrancheError as error:
        return error


def for_user(view: NodeView, waiter: WaitingRequest) -> NodeView:
    """The view for a decision about that waiter."""
    return replace(view, asker=waiter.uid) if view.quotas or view.reservations else view


def at(view: NodeView, now: float | None) -> NodeView:
    """The view at that time in seconds since the epoch, as far as the time matters for a decision."""
    return view if now is None or not view.reservations else replace(view, time=now)


def in_time(view: NodeView, waiters: Iterable[WaitingRequest]) -> list[WaitingRequest]:
    """The waiters with the time limits that their users' quotas give them."""
    if not view.quotas:
        return list(waiters)
    return [each._replace(request=within_time(each.request, view.quotas, each.uid)) for each in waiters]


_Alike = tuple[Request, bool, Hashable]


def _alike(view: NodeView, waiter: WaitingRequest) -> _Alike:
    """Equal for waiters that get the same answer."""
    its_view = for_user(view, waiter)
    mine = [each.id for each in view.reservations if is_for(each, view, waiter.uid)]
    return waiter.request, waiter.silent, (limits_alike(its_view), *mine)


def _first_of_each(view: NodeView, waiters: Iterable[WaitingRequest]) -> Iterator[WaitingRequest]:
    """The first waiter of each distinct request."""
    seen: set[_Alike] = set()
    for waiter in waiters:
        if (alike := _alike(view, waiter)) not in seen:
            seen.add(alike)
            yield waiter


def _wanted(view: NodeView, request: Request) -> tuple[str, ...]:
    try:
        check_possible(view, request)
        refuse_beyond_quota(view, request)
        refuse_too_long(view, request)
    except TrancheError:
        return ()  # it can never start here, so it must not hold others up
    found = zip(view.node, candidates_within_quota(view, request), strict=True)
    wanted = tuple(gpu.uuid for gpu, answer in found if isinstance(answer, Candidate))
    closed = {each.place.gpu_uuid for each in view.withheld if each.place.slot is None and not each.for_large}
    # With fewer open GPUs than it needs, it starts only after an administrator has acted: others need not wait for that.
    return wanted if len(set(wanted) - closed) >= gpus_needed(request) else ()


def ahead_of(view: NodeView, request: Request, waiters: Iterable[WaitingRequest]) -> tuple[str, ...]:
    """The ids of those waiters that the request must leave GPUs to which it could use itself, in order."""
    mine = set(_wanted(view, request))
    in_the_way: dict[_Alike, bool] = {}
    found = []
    for waiter in in_time(view, waiters):
        alike = _alike(view, waiter)
        if alike not in in_the_way:
            in_the_way[alike] = not mine.isdisjoint(held_up(for_user(view, waiter), waiter.request))
        if in_the_way[alike] and not waiter.silent:
            found.append(waiter.id)
    return tuple(found)


def held_up(view: NodeView, request: Request) -> tuple[str, ...]:
    """The GPUs that later waiters must leave to the request. A reservation that keeps it from one now does so to its end."""
    wanted = _wanted(view, request)
    if not view.reservations:
        return wanted
    until = free_at(request, view.time)
    return tuple(uuid for uuid in wanted if closing(view, uuid, until) is None)
