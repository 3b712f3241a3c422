"""Decides about one waiting request, each time its process looks at the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tranche.core.allocation import Allocation, NodeView
from tranche.core.errors import (
    AllocationUnknown,
    DoesNotFit,
    GpuNotFound,
    ProfileUnknown,
    SharingUnavailable,
    TrancheError,
)
from tranche.core.request import Request
from tranche.local.attendance import attending
from tranche.local.failed_gpus import FailedGpus
from tranche.node.state.session import StateFolder
from tranche.node.store import records
from tranche.planning.decide.allocate import Decision, Granted
from tranche.planning.decide.queue import WaitingRequest, may_start

_IMPOSSIBLE = (DoesNotFit, GpuNotFound, ProfileUnknown, SharingUnavailable)

Record = Callable[[NodeView, Sequence[WaitingRequest], str, bool, Decision | TrancheError], None]
"""Told a view, the waiters in order, the id of the one decided about, whether foreign idle instances may go, and the outcome."""


@dataclass(slots=True, kw_only=True)
class QueuedRequest:
    """A request of this process that waits. `clock` is in seconds; `record` is told each decision.

    `refuse_over` raises when nobody wants the share any more, and is asked right before a plan is promised.

    `allocations` are those that the latest decision saw.
    """

    waiter_id: str
    request: Request
    failed: FailedGpus
    places: StateFolder
    clock: Callable[[], float]
    adopt_foreign_destroy: bool
    record: Record | None
    refuse_over: Callable[[], None]
    allocations: tuple[Allocation, ...] = ()

    def decide(self, view: NodeView, queue: Sequence[records.Waiter]) -> Decision:
        """The decision without the GPUs on which the plan failed; what failed on them when no other GPU can ever serve."""
        self.allocations = view.allocations
        left = self.failed.left_out_of(view)
        there = as_asked(attending(self.places, queue, self.clock(), but=self.waiter_id))
        outcome: Decision | TrancheError
        try:
            outcome = may_start(left, there, self.waiter_id, adopt_foreign_destroy=self.adopt_foreign_destroy)
        except TrancheError as error:
            outcome = error
        if self.record is not None and not isinstance(outcome, AllocationUnknown):
            self.record(left, there, self.waiter_id, self.adopt_foreign_destroy, outcome)
        if isinstance(outcome, Granted) and not outcome.plan.empty:
            self.refuse_over()
        if not isinstance(outcome, TrancheError):
            return outcome
        if isinstance(outcome, _IMPOSSIBLE) and (failure := self.failed.error(self.request)) is not None:
            raise failure from outcome
        raise outcome


def as_asked(queue: Sequence[records.Waiter]) -> list[WaitingRequest]:
    """The queue as decisions see it."""
    return [WaitingRequest(waiter.id, waiter.request) for waiter in queue]
