"""Fair order among requests that wait: those that compete for a GPU are served in the order in which they came.

A waiter wants every GPU that could serve it, were it empty. A later waiter may start only on GPUs that no earlier one wants, so
a small request never overtakes a large one that waits for the same GPU, and requests for different GPUs never wait for each
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tranche.core.allocation import NodeView
from tranche.core.errors import AllocationUnknown, TrancheError
from tranche.core.request import Request
from tranche.planning.allocate import Decision, decide
from tranche.planning.candidates import Candidate, candidate, check_possible
from tranche.planning.policy import DEFAULT, Policy


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request that waits, named by its id."""

    id: str
    request: Request


def may_start(
    view: NodeView,
    waiters: Sequence[Waiter],
    waiter_id: str,
    *,
    policy: Policy = DEFAULT,
    adopt_foreign_destroy: bool = False,
    mode_change_allowed: bool = True,
) -> Decision:
    """What the waiter of that id gets now; `waiters` is in order of arrival, and the options are those of `decide`.

    Raises AllocationUnknown when the id is not among them, and what `decide` raises when the request can never be served.
    """
    for position, waiter in enumerate(waiters):
        if waiter.id == waiter_id:
            return decide(
                view,
                waiter.request,
                policy=policy,
                adopt_foreign_destroy=adopt_foreign_destroy,
                mode_change_allowed=mode_change_allowed,
                reserved=reserved_for(view, waiters[:position]),
            )
    raise AllocationUnknown(f"no request {waiter_id} waits")


def reserved_for(view: NodeView, waiters: Iterable[Waiter]) -> dict[str, str]:
    """The UUID of each GPU that one of the waiters wants, with the id of the first of them that does."""
    reserved: dict[str, str] = {}
    wanted: dict[Request, tuple[str, ...]] = {}
    for waiter in waiters:
        if waiter.request not in wanted:
            wanted[waiter.request] = _wanted(view, waiter.request)
        for uuid in wanted[waiter.request]:
            reserved.setdefault(uuid, waiter.id)
    return reserved


def _wanted(view: NodeView, request: Request) -> tuple[str, ...]:
    try:
        check_possible(request, view.node)
    except TrancheError:
        return ()  # it can never start here, so it must not hold others up
    return tuple(gpu.uuid for gpu in view.node if isinstance(candidate(request, gpu), Candidate))
