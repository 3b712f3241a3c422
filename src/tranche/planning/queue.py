"""Fair order among requests that wait: those that compete for a GPU are served in the order in which they came.

A waiter wants every GPU that could serve it, were it empty. A later waiter may start only on GPUs that no earlier one wants, so
a small request never overtakes a large one that waits for the same GPU, and requests for different GPUs never wait for each
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tranche.core.allocation import NodeView
from tranche.core.errors import AllocationUnknown, TrancheError
from tranche.core.request import Request
from tranche.planning.allocate import Decision, Granted, decide
from tranche.planning.candidates import Candidate
from tranche.planning.indexed_view import IndexedView, indexed
from tranche.planning.situation import GpuKind


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits, named by its id."""

    id: str
    request: Request


def may_start(
    view: NodeView | IndexedView,
    waiters: Sequence[WaitingRequest],
    waiter_id: str,
    *,
    adopt_foreign_destroy: bool = False,
) -> Decision:
    """What the waiter of that id gets now; `waiters` is in order of arrival, and `adopt_foreign_destroy` is that of `decide`.

    Raises AllocationUnknown when the id is not among them, and what `decide` raises when the request can never be served.
    """
    index = indexed(view)
    for position, waiter in enumerate(waiters):
        if waiter.id == waiter_id:
            return decide(
                index,
                waiter.request,
                adopt_foreign_destroy=adopt_foreign_destroy,
                reserved=reserved_for(index, waiters[:position]),
            )
    raise AllocationUnknown(f"no request {waiter_id} waits")


def reserved_for(view: NodeView | IndexedView, waiters: Iterable[WaitingRequest]) -> dict[GpuKind, str]:
    """The kinds of GPU that the waiters want, each with the id of the first of them that does.

    A waiter wants all GPUs of a kind or none, because what it wants does not depend on what is on them.
    """
    index = indexed(view)
    reserved: dict[GpuKind, str] = {}
    for request, waiter_id in _first_of_each(waiters):
        if len(reserved) == len(index.kinds):
            break
        for kind in _wanted(index, request):
            reserved.setdefault(kind, waiter_id)
    return reserved


def startable(
    view: NodeView | IndexedView,
    waiters: Iterable[WaitingRequest],
    *,
    adopt_foreign_destroy: bool = False,
) -> Iterator[str]:
    """The ids of the waiters that may start now, in order of arrival; `adopt_foreign_destroy` is that of `decide`."""
    index = indexed(view)
    reserved: dict[GpuKind, str] = {}
    # Of equal requests only the first can be startable: it reserves all that the others want.
    for request, waiter_id in _first_of_each(waiters):
        if len(reserved) == len(index.kinds):
            return
        wanted = _wanted(index, request)
        if not all(kind in reserved for kind in wanted):
            decision = decide(
                index,
                request,
                adopt_foreign_destroy=adopt_foreign_destroy,
                reserved=reserved,
            )
            if isinstance(decision, Granted):
                yield waiter_id
        for kind in wanted:
            reserved.setdefault(kind, waiter_id)


def outlooks(view: NodeView | IndexedView, waiters: Iterable[WaitingRequest]) -> Iterator[Decision | TrancheError]:
    """What each waiter gets now, in order of arrival, or why it can never get anything."""
    index = indexed(view)
    reserved: dict[GpuKind, str] = {}
    for waiter in waiters:
        try:
            yield decide(index, waiter.request, reserved=reserved)
        except TrancheError as error:
            yield error
        if len(reserved) < len(index.kinds):
            for kind in _wanted(index, waiter.request):
                reserved.setdefault(kind, waiter.id)


def _first_of_each(waiters: Iterable[WaitingRequest]) -> Iterator[tuple[Request, str]]:
    """Each request once, with the id of the first waiter that asks for it."""
    seen: set[Request] = set()
    for waiter in waiters:
        if waiter.request not in seen:
            seen.add(waiter.request)
            yield waiter.request, waiter.id


def _wanted(index: IndexedView, request: Request) -> tuple[GpuKind, ...]:
    try:
        index.check_possible(request)
    except TrancheError:
        return ()  # it can never start here, so it must not hold others up
    return tuple(kind for kind, answer in index.candidates(request).items() if isinstance(answer, Candidate))
