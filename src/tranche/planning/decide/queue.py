"""Fair order of waiting requests: competitors for a GPU are served in order of arrival.

A waiter wants every GPU that could serve it, were it empty. A later waiter may start only on GPUs that no earlier one wants. So a
small request never overtakes a large one that waits for the same GPU, and requests for different GPUs never wait for each other.
A waiter that needs more GPUs than are open (not lost, cordoned or faulty) holds none up until that changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tranche.core.allocation import NodeView
from tranche.core.errors import AllocationUnknown, TrancheError
from tranche.core.request import Request
from tranche.planning.decide.allocate import Decision, Granted, decide
from tranche.planning.decide.answers import Reserved
from tranche.planning.decide.candidates import Candidate, candidate, check_possible, gpus_needed
from tranche.planning.decide.share_options import rules_of


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A waiting request with its id."""

    id: str
    request: Request


def may_start(
    view: NodeView,
    waiters: Sequence[WaitingRequest],
    waiter_id: str,
    *,
    adopt_foreign_destroy: bool = False,
) -> Decision:
    """What that waiter gets now; `waiters` is in order of arrival, and `adopt_foreign_destroy` is that of `decide`.

    Raises AllocationUnknown when the id is not among them, and what `decide` raises when the request can never be served.
    """
    for position, waiter in enumerate(waiters):
        if waiter.id == waiter_id:
            return decide(
                view,
                waiter.request,
                adopt_foreign_destroy=adopt_foreign_destroy,
                reserved=reserved_for(view, waiters[:position]),
            )
    raise AllocationUnknown(f"no request {waiter_id} waits")


def reserved_for(view: NodeView, waiters: Iterable[WaitingRequest]) -> dict[str, str]:
    """The UUIDs of the GPUs that the waiters want, each with the first waiter's id."""
    reserved: dict[str, str] = {}
    for request, waiter_id in _first_of_each(waiters):
        if len(reserved) == len(view.node.gpus):
            break
        for uuid in _wanted(view, request):
            reserved.setdefault(uuid, waiter_id)
    return reserved


def startable(
    view: NodeView,
    waiters: Iterable[WaitingRequest],
    *,
    adopt_foreign_destroy: bool = False,
) -> Iterator[str]:
    """The ids of the waiters that may start now, in order of arrival; `adopt_foreign_destroy` is that of `decide`."""
    reserved: dict[str, str] = {}
    # Among equal requests only the first can be startable: it reserves everything the others want.
    for request, waiter_id in _first_of_each(waiters):
        if len(reserved) == len(view.node.gpus):
            return
        wanted = _wanted(view, request)
        if not all(uuid in reserved for uuid in wanted):
            decision = decide(view, request, adopt_foreign_destroy=adopt_foreign_destroy, reserved=reserved)
            if isinstance(decision, Granted):
                yield waiter_id
        for uuid in wanted:
            reserved.setdefault(uuid, waiter_id)


def outlooks(view: NodeView, waiters: Iterable[WaitingRequest]) -> Iterator[Decision | TrancheError]:
    """What each waiter gets now, in order of arrival, or why it never can."""
    reserved: dict[str, str] = {}
    known: dict[Request, Decision | TrancheError] = {}
    for waiter in waiters:
        if waiter.request not in known:
            known[waiter.request] = _outlook(view, waiter.request, reserved)
        yield known[waiter.request]
        if len(reserved) < len(view.node.gpus):
            before = len(reserved)
            for uuid in _wanted(view, waiter.request):
                reserved.setdefault(uuid, waiter.id)
            if len(reserved) > before:
                known.clear()


def _outlook(view: NodeView, request: Request, reserved: Reserved) -> Decision | TrancheError:
    try:
        return decide(view, request, reserved=reserved)
    except TrancheError as error:
        return error


def _first_of_each(waiters: Iterable[WaitingRequest]) -> Iterator[tuple[Request, str]]:
    """Each distinct request, with the id of its first waiter."""
    seen: set[Request] = set()
    for waiter in waiters:
        if waiter.request not in seen:
            seen.add(waiter.request)
            yield waiter.request, waiter.id


def _wanted(view: NodeView, request: Request) -> tuple[str, ...]:
    try:
        check_possible(view, request)
    except TrancheError:
        return ()  # it can never start here, so it must not hold others up
    wanted = tuple(gpu.uuid for gpu in view.node if isinstance(candidate(request, gpu, rules_of(view, gpu)), Candidate))
    closed = {each.place.gpu_uuid for each in view.withheld if each.place.slot is None and not each.for_large}
    # With fewer open GPUs than it needs, it starts only after an administrator has acted: others need not wait for that.
    return wanted if len(set(wanted) - closed) >= gpus_needed(request) else ()
