"""Fair order of waiting requests: competitors for a GPU are served in order of arrival.

A waiter wants every GPU that could serve it, were it empty. A later waiter may start only on GPUs that no earlier one wants. So a
small request never overtakes a large one that waits for the same GPU, and requests for different GPUs never wait for each other.
A waiter that needs more GPUs than are open (not lost, cordoned or faulty) holds none up until that changes. Nor does a waiter
beyond its user's quota, so later requests may pass it, also the same user's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tranche.core.allocation import NodeView
from tranche.core.errors import AllocationUnknown, TrancheError
from tranche.core.request import Request
from tranche.core.user_quota import within_time
from tranche.planning.decide.allocate import Decision, Granted, decide
from tranche.planning.decide.answers import Reserved
from tranche.planning.decide.candidates import Candidate, check_possible, gpus_needed
from tranche.planning.decide.quota import candidates_within_quota, refuse_beyond_quota, refuse_too_long


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A waiting request with its id, and the uid of its user, -1 if unknown."""

    id: str
    request: Request
    uid: int = -1


def may_start(
    view: NodeView,
    waiters: Sequence[WaitingRequest],
    waiter_id: str,
    *,
    adopt_foreign_destroy: bool = False,
    now: float | None = None,
) -> Decision:
    """What that waiter gets now; `waiters` is in order of arrival, and `adopt_foreign_destroy` is that of `decide`.

    A waiter with a time limit may pass earlier ones only with `now`, in seconds since the epoch. Raises AllocationUnknown when
    the id is not among them, and what `decide` raises when the request can never be served.
    """
    waiters = _in_time(view, waiters)
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
) -> Decision:
    """What the waiter gets behind those `ahead`, for whom GPUs are `reserved`; the rest as for `may_start`."""
    its_view, request = for_user(view, waiter), waiter.request
    refuse_too_long(its_view, request)
    found = decide(its_view, request, adopt_foreign_destroy=adopt_foreign_destroy, reserved=reserved)
    if isinstance(found, Granted) or now is None or all(each.request.time_limit is None for each in view.allocations):
        return found
    from tranche.planning.decide.backfill import Foresight, backfill  # most machines have no time limits

    if not reserved:
        return replace(found, starts_by=Foresight(its_view, now).starts_by(request, waiter.uid))
    if request.time_limit is None:
        return found
    passing = backfill(its_view, request, reserved, by_id(ahead), now, adopt_foreign_destroy=adopt_foreign_destroy)
    return found if passing is None else passing


def by_id(waiters: Iterable[WaitingRequest]) -> Mapping[str, tuple[int, Request]]:
    """The user and the request behind each id."""
    return {each.id: (each.uid, each.request) for each in waiters}


def reserved_for(view: NodeView, waiters: Iterable[WaitingRequest]) -> dict[str, str]:
    """The UUIDs of the GPUs that the waiters want, each with the first waiter's id."""
    reserved: dict[str, str] = {}
    for waiter in _first_of_each(view, waiters):
        if len(reserved) == len(view.node.gpus):
            break
        for uuid in _wanted(for_user(view, waiter), waiter.request):
            reserved.setdefault(uuid, waiter.id)
    return reserved


def startable(
    view: NodeView,
    waiters: Iterable[WaitingRequest],
    *,
    adopt_foreign_destroy: bool = False,
    now: float | None = None,
) -> Iterator[str]:
    """The ids of the waiters that may start now, in order of arrival; the rest as for `may_start`."""
    reserved: dict[str, str] = {}
    ahead: list[WaitingRequest] = []
    # Among equal requests only the first can be startable: it reserves everything the others want.
    for waiter in _first_of_each(view, _in_time(view, waiters)):
        may_pass = now is not None and waiter.request.time_limit is not None
        if len(reserved) == len(view.node.gpus) and not may_pass:
            continue
        wanted = _wanted(for_user(view, waiter), waiter.request)
        if wanted and (may_pass or not all(uuid in reserved for uuid in wanted)):
            decision = decide_behind(view, waiter, ahead, reserved, now, adopt_foreign_destroy=adopt_foreign_destroy)
            if isinstance(decision, Granted):
                yield waiter.id
        for uuid in wanted:
            reserved.setdefault(uuid, waiter.id)
        ahead.append(waiter)


def outlooks(view: NodeView, waiters: Iterable[WaitingRequest]) -> Iterator[Decision | TrancheError]:
    """What each waiter gets now, in order of arrival, or why it never can."""
    reserved: dict[str, str] = {}
    known: dict[_Alike, Decision | TrancheError] = {}
    for waiter in waiters:
        alike, its_view = _alike(view, waiter), for_user(view, waiter)
        if alike not in known:
            known[alike] = _outlook(its_view, waiter.request, reserved)
        yield known[alike]
        if len(reserved) < len(view.node.gpus):
            before = len(reserved)
            for uuid in _wanted(its_view, waiter.request):
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
    return replace(view, asker=waiter.uid) if view.quotas else view


def _in_time(view: NodeView, waiters: Iterable[WaitingRequest]) -> list[WaitingRequest]:
    """The waiters with the time limits that their users' quotas give them."""
    return [replace(each, request=within_time(each.request, view.quotas, each.uid)) for each in waiters]


_Alike = tuple[Request, int]


def _alike(view: NodeView, waiter: WaitingRequest) -> _Alike:
    """Equal for waiters that get the same answer. Users differ only where they have quotas."""
    return waiter.request, waiter.uid if view.quotas else -1


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
