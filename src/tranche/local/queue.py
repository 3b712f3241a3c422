"""Waits for a share, in order, without polling: a waiter sleeps until its bell rings.

A process that gives a share back, or gets one, looks once at the machine and rings the first waiter that may start now. Only two
things need a patrol, because nothing announces them. One is a killed `tranche run`: the patrol probes file locks and asks no GPU.
The other is a GPU that a program outside Tranche has left: the head of the queue looks again now and then.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from tranche.core.allocation import Allocation, NodeView
from tranche.core.errors import (
    AllocationUnknown,
    DoesNotFit,
    GpuBusy,
    GpuNotFound,
    HardwareError,
    LayoutImpossible,
    LedgerUnavailable,
    MigNotSupported,
    ModeChangePending,
    MpsFailed,
    NoRoom,
    ProfileUnknown,
    SharingUnavailable,
    TrancheError,
    VerificationFailed,
    WaitTimeout,
)
from tranche.core.keeper import KeeperStatus
from tranche.core.request import Request
from tranche.core.reservation import GIVEN_UP_SECONDS
from tranche.core.state import GpuState
from tranche.documents.holder_names import names_of
from tranche.documents.reasons import summed_up
from tranche.local.wakeup_pipe import WakeupPipe, as_asked, attending, ring
from tranche.node.execution.executor import Progress, no_progress
from tranche.node.held import HeldAllocation, QueuePlace, ReservedShare
from tranche.node.host import Host
from tranche.node.limits.share_groups import LimitsRefused
from tranche.node.locks.deciding import WaitLimit
from tranche.node.locks.interrupts import interruptible, uninterruptible
from tranche.node.processes.keeping import RemainingProcesses
from tranche.node.processes.processes import Process
from tranche.node.state.session import process_stopped
from tranche.node.store import records
from tranche.node.store.ledger import lacks_room
from tranche.node.store.register import process_owners
from tranche.planning.decide.allocate import Decision, Granted, Waiting
from tranche.planning.decide.obstacle import Obstacle, Reason, obstacle
from tranche.planning.decide.queue import WaitingRequest, may_start, startable
from tranche.planning.decide.time_limits import GRACE_SECONDS
from tranche.planning.steps import Step

# A program outside Tranche may cause these by using or cutting the GPU after the decision: worth another look at the same GPU.
_DISTURBED = (GpuBusy, NoRoom, VerificationFailed)
# The driver says these of one GPU, not of all: another GPU may do better.
_OWN = (*_DISTURBED, GpuNotFound, HardwareError, LayoutImpossible, MigNotSupported, ModeChangePending, MpsFailed)
_LOOKS = 3
_FIRST_PAUSE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 3600.0


@dataclass(slots=True)
class _Failure:
    gpu: GpuState
    error: TrancheError
    looks: int = 0
    pauses: int = 0
    until: float = 0.0


class FailedGpus:
    """The errors of one request on each GPU. `monotonic` is in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, GpuState] = {}
        self._failures: dict[str, _Failure] = {}

    def note(self, error: TrancheError) -> bool:
        """Whether to decide the request again: the error concerned one GPU, which is left out from now on.

        A GPU that another program may have disturbed is left out after the third time. The pauses grow, up to an hour.
        """
        gpu = self._seen.get(error.gpu_uuid)
        if gpu is None or not isinstance(error, _OWN):
            return False
        failure = self._failures.setdefault(gpu.uuid, _Failure(gpu, error))
        if failure.until > self._monotonic():
            return False  # the request was decided without it: this error sums up the failures, and is not one more
        failure.gpu, failure.error = gpu, error
        failure.looks += 1
        if not isinstance(error, _DISTURBED) or failure.looks >= _LOOKS:
            pause = min(_FIRST_PAUSE_SECONDS * 2**failure.pauses, _LONGEST_PAUSE_SECONDS)
            failure.until = self._monotonic() + pause
            failure.pauses += 1
            failure.looks = 0
        return True

    def left_out_of(self, view: NodeView) -> NodeView:
        """The view without the GPUs that are left out now."""
        self._seen.update({gpu.uuid: gpu for gpu in view.node})
        out = {failure.gpu.uuid for failure in self._left_out()}
        if not out:
            return view
        return replace(view, node=replace(view.node, gpus=tuple(gpu for gpu in view.node if gpu.uuid not in out)))

    def explain(self, outcome: Waiting) -> Waiting:
        """The outcome with an obstacle for each GPU that is left out."""
        failed = tuple(_obstacle(failure) for failure in self._left_out())
        return outcome._replace(obstacles=(*failed, *outcome.obstacles)) if failed else outcome

    def error(self, request: Request, also: tuple[str, ...] = ()) -> TrancheError | None:
        """The error that says what happened on every left-out GPU, and `also` about others; None if none is left out."""
        failed = sorted(self._left_out(), key=lambda failure: failure.gpu.index)
        if not failed:
            return None
        first = failed[0].error
        if len(failed) == 1 and not also:
            return first
        where = "; ".join((*(str(_obstacle(failure)) for failure in failed), *also))
        return type(first)(f"{request} failed on every GPU that could serve it now: {where}", hint=first.hint)

    def _left_out(self) -> list[_Failure]:
        now = self._monotonic()
        return [failure for failure in self._failures.values() if failure.until > now]


def _obstacle(failure: _Failure) -> Obstacle:
    return obstacle(failure.gpu, Reason.DRIVER_ERROR, failure.error.message)


_IMPOSSIBLE = (DoesNotFit, GpuNotFound, ProfileUnknown, SharingUnavailable)

Record = Callable[[NodeView, Sequence[WaitingRequest], str, bool, float, Decision | TrancheError], None]
"""Receives a view, the waiters in order, the id decided about, whether foreign idle instances may go, the time, the outcome."""

Preempt = Callable[[NodeView, Sequence[WaitingRequest], str, float], Sequence[str]]
"""Receives a view, the waiters in order, the id of the one that waits, and the time."""


_HEAD_PATROL_SECONDS = 1.0
_OTHERS_PATROL_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 10.0
_COURTESY_SECONDS = 2.0
# A request decides soon after it arrives; one that arrived longer ago has decided, and waits.
_DECIDES_WITHIN_SECONDS = 3.0
_GLANCE_SECONDS = 0.1
# A nap longer by this much means that this process was stopped, and rings may have gone to others.
_STOPPED_SECONDS = 2.0


class Cancelled(Exception):
    """`tranche release` removed the waiting request from the queue."""


class Queue:
    """One process's part in the queue of a machine."""

    def __init__(
        self,
        host: Host,
        *,
        adopt_foreign_destroy: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
        record: Record | None = None,
        refuse: Callable[[Granted], None] = lambda decision: None,
        preempt: Preempt = lambda view, waiters, waiter_id, now: (),
        held_up: Callable[[TrancheError], None] = lambda error: None,
    ) -> None:
        """`record` receives each decision about a request of this process, and its inputs.

        `refuse` raises, before anything is reserved, for what this process cannot use. `preempt` ends preemptible commands for a
        waiter, and returns their shares' ids. `held_up` receives why a waiter cannot decide for now, at each try.
        """
        self._host = host
        self._record = record
        self._refuse = refuse
        self._preempt = preempt
        self._held_up = held_up
        self._adopt_foreign_destroy = adopt_foreign_destroy
        self._monotonic = monotonic
        self._clock = clock
        self._preempted: frozenset[str] = frozenset()
        self._may_preempt = False

    def acquire(
        self,
        request: Request,
        *,
        command: str,
        pid: int,
        patience: WaitLimit,
        waiting: Callable[[Waiting, int, str], None] = lambda outcome, ahead, told: None,
        progress: Progress = no_progress,
    ) -> HeldAllocation:
        """Wait for a share in order. NoRoom without patience, WaitTimeout when it ends, Cancelled if the request is cancelled.

        `waiting` receives why there is no share yet, how many requests are ahead, and the reasons in words. If this ends without
        a share, it gives the place in the queue up.
        """
        begun = self._monotonic()
        with self._host.ledger.waiting(patience.with_others(0.0)):
            ticket = self._host.enqueue(request, command=command, pid=pid)
        try:
            bell = WakeupPipe(self._host.places.wakeup_pipe(ticket.id))
        except BaseException:
            self._host.leave(ticket)
            raise
        try:
            return self._wait(request, ticket, bell, pid, patience, begun, waiting, progress)
        except BaseException as error:
            removed = not ticket.lock.in_place
            waited = self._leave(ticket, patience.with_others(self._monotonic() - begun))
            self.ring_next()
            if not waited and removed:
                raise LedgerUnavailable(
                    f"{ticket.lock.path} was removed, so request {ticket.id} appeared to belong to a dead process",
                    hint="run the command again; do not remove files from the state folder while requests are waiting",
                ) from error
            # Without room, a request whose slice was being made does not get its place back.
            if not waited and not isinstance(error, LedgerUnavailable):
                raise Cancelled(f"waiting request {ticket.id} was cancelled") from error
            raise
        finally:
            bell.close()

    def _leave(self, ticket: QueuePlace, seconds: float | None) -> bool:
        """Give the place up; False if it was cancelled. If others keep writing, or the disk is full, a later command does."""
        try:
            with self._host.ledger.waiting(seconds):
                return self._host.leave(ticket)
        except (WaitTimeout, LedgerUnavailable):
            ticket.lock.release()
            return True

    def release(self, allocation_id: str, *, why: str) -> None:
        """Give a share back and ring the waiter that can use it."""
        self._host.release(allocation_id, why=why)
        self.ring_next()

    def give_back(
        self, held: HeldAllocation, *, why: str, orphans: Sequence[Process] = (), killed: bool = False
    ) -> RemainingProcesses:
        """Give a share back after its command ended, and ring the waiter that can use it. Remains of the command keep it.

        `orphans` and `killed` as for `Host.give_back`.
        """
        remains = self._host.give_back(held, why=why, orphans=orphans, killed=killed)
        if remains.life is KeeperStatus.GONE:
            self.ring_next()
        return remains

    def ring_all(self) -> None:
        """Ring every waiter: each decides again, and one whose request became impossible ends. A failure as in `ring_next`."""
        with contextlib.suppress(TrancheError):
            for each in self._host.waiters():
                ring(self._host.places.wakeup_pipe(each.id))

    def ring_next(self) -> None:
        """Ring the first waiter that may start now, with one look at the machine.

        This is a courtesy: a failure here does not fail this command, and waiters look for themselves later.
        """
        with contextlib.suppress(TrancheError), uninterruptible():
            self._ring_next()

    def _ring_next(self) -> None:
        if not self._host.waiters():
            return
        view = self._host.view(seconds=_COURTESY_SECONDS)
        now = self._clock()
        waiters = as_asked(self._host.places, self._host.waiters(), now)
        for waiter_id in startable(view, waiters, adopt_foreign_destroy=self._adopt_foreign_destroy, now=now):
            if ring(self._host.places.wakeup_pipe(waiter_id)):
                return

    def _wait(
        self,
        request: Request,
        ticket: QueuePlace,
        bell: WakeupPipe,
        pid: int,
        patience: WaitLimit,
        begun: float,
        waiting: Callable[[Waiting, int, str], None],
        progress: Progress,
    ) -> HeldAllocation:
        deadline = None if patience.seconds is None else begun + patience.seconds

        def refuse_over() -> None:
            with interruptible():
                if deadline is not None and self._monotonic() >= deadline:
                    raise WaitTimeout("the timeout expired before any change began")

        failed = FailedGpus(self._monotonic)
        changed = False

        def noting(gpu: GpuState, step: Step) -> None:
            nonlocal changed
            if not changed:
                refuse_over()  # a slow driver may delay the start of the plan
            changed = True
            progress(gpu, step)

        while True:
            others = patience.with_others(self._monotonic() - begun)
            try:
                self._await_continued(pid, bell, refuse_over)
                # A command would end in vain for a request that gives up first.
                stays = patience.wait and (deadline is None or deadline - self._monotonic() >= GRACE_SECONDS)
                try:
                    outcome, allocations = self._reserve(request, ticket, failed, refuse_over, others, stays=stays)
                except LedgerUnavailable as error:
                    if not patience.wait or not lacks_room(error):
                        raise
                    self._held_up(error)  # the request keeps its place until there is room to write again
                    refuse_over()
                    with interruptible():
                        bell.wait(_HEAD_PATROL_SECONDS)
                    continue
                if isinstance(outcome, ReservedShare):
                    held = self._host.fulfil(outcome, progress=noting, seconds=others)
                    # A finished plan may have opened a GPU to others: MIG mode is on now, or instances can be reused.
                    if changed:
                        self.ring_next()
                    return held
            except LimitsRefused:
                continue
            except WaitTimeout as error:
                within = others if patience.seconds is None else patience.seconds
                raise WaitTimeout(
                    f"{request} got no share within {within:g} s: {error.message}", hint=error.hint
                ) from error
            except TrancheError as error:
                if not failed.note(error):
                    raise
                continue
            if not patience.wait and self._let_decide(ticket, bell):
                continue
            also = tuple(filter(None, (self._told(outcome, allocations),)))
            if not patience.wait and (failure := failed.error(request, also)):
                raise failure
            outcome = failed.explain(outcome)
            reasons = self._told(outcome, allocations)
            if not patience.wait:
                quota = all(each.reason is Reason.QUOTA for each in outcome.obstacles)
                raise NoRoom(
                    f"{'no share' if quota else 'nothing is free'} for {request}: {reasons}",
                    hint=f"see why with: tranche explain {request}",
                )
            ahead = self._ahead_of(ticket) or 0
            with interruptible():
                waiting(outcome, ahead, reasons)
            if not self._sleep(ticket, bell, deadline):
                raise WaitTimeout(
                    f"{request} got no share within {patience.seconds:g} s: {reasons}",
                    hint=f"see why with: tranche explain {request}",
                )

    def _await_continued(self, pid: int, bell: WakeupPipe, refuse_over: Callable[[], None]) -> None:
        """Wait until the client goes on, if it is stopped: a share would lie idle until then."""
        while process_stopped(pid):
            refuse_over()
            with interruptible():
                rang = bell.wait(_HEAD_PATROL_SECONDS)
            if rang:
                self.ring_next()

    def _reserve(
        self,
        request: Request,
        place: QueuePlace,
        failed: FailedGpus,
        refuse_over: Callable[[], None],
        seconds: float | None,
        *,
        stays: bool,
    ) -> tuple[ReservedShare | Waiting, Sequence[Allocation]]:
        """Decide and reserve under the decision lock; others may start once the lock is free. Also the allocations seen.

        A request that `stays` long enough may end preemptible commands.
        """
        with self._host.deciding(seconds) as (view, queue):
            decision = self._decide(request, place.id, failed, view, queue)
            if isinstance(decision, Waiting):
                humble = any(each.request.preemptible for each in view.allocations)
                self._may_preempt = stays and humble and not request.preemptible
                if self._may_preempt:
                    now = self._clock()
                    there = as_asked(self._host.places, queue, now, but=place.id)
                    self._preempted |= {*self._preempt(failed.left_out_of(view), there, place.id, now)}
                return decision, view.allocations
            self._refuse(decision)
            if not decision.plan.empty:
                refuse_over()
            reservation = self._host.reserve(place, decision, view)
        self.ring_next()
        return reservation, view.allocations

    def _decide(
        self, request: Request, waiter_id: str, failed: FailedGpus, view: NodeView, queue: Sequence[records.Waiter]
    ) -> Decision:
        """Decide without the GPUs on which the plan failed; raises their failure if no other GPU can ever serve."""
        left = failed.left_out_of(view)
        now = self._clock()
        there = as_asked(self._host.places, queue, now, but=waiter_id)
        outcome: Decision | TrancheError
        try:
            outcome = may_start(left, there, waiter_id, adopt_foreign_destroy=self._adopt_foreign_destroy, now=now)
        except TrancheError as error:
            outcome = error
        if self._record is not None and not isinstance(outcome, AllocationUnknown):
            self._record(left, there, waiter_id, self._adopt_foreign_destroy, now, outcome)
        if not isinstance(outcome, TrancheError):
            return outcome
        if isinstance(outcome, _IMPOSSIBLE) and (failure := failed.error(request)) is not None:
            raise failure from outcome
        raise outcome

    def _told(self, outcome: Waiting, allocations: Sequence[Allocation]) -> str:
        """The obstacles in words, with the names of the holders."""
        queue = self._host.waiters()
        names = names_of(allocations, queue, process_owners(allocations, queue))
        ending = [names.called.get(each.id, each.id) for each in allocations if each.id in self._preempted]
        return summed_up(outcome, names) + (f"; Tranche is ending {', '.join(ending)}" if ending else "")

    def _sleep(self, ticket: QueuePlace, bell: WakeupPipe, deadline: float | None) -> bool:
        """Sleep until another try is worthwhile; False if the deadline passed first."""
        look_again = self._monotonic() + _LOOK_AGAIN_SECONDS
        turning_point = self._turning_point()
        was_next: bool | None = None
        while True:
            if self._clock() >= turning_point:
                return True
            ahead = self._ahead_of(ticket)
            # Nothing rings when a waiter ahead is stopped, nor when one of a fair queue goes ahead.
            if ahead is None or was_next not in (None, ahead == 0):
                return True
            was_next = ahead == 0
            nap = _HEAD_PATROL_SECONDS if ahead == 0 else _OTHERS_PATROL_SECONDS
            now = self._monotonic()
            nap = min(nap, max(0.0, turning_point - self._clock()))
            if deadline is not None:
                if now >= deadline:
                    return False
                nap = min(nap, deadline - now)
            with interruptible():
                rang = bell.wait(nap)
            if rang or self._monotonic() > now + nap + _STOPPED_SECONDS:
                return True
            # Nothing rings a waiter that could start in the place of a preemptible command.
            looks = (ahead == 0 or self._may_preempt) and self._monotonic() >= look_again
            if self._host.recovery_needed() or looks:
                # An unannounced change may also help a waiter further back.
                self.ring_next()
                return True

    def _turning_point(self) -> float:
        """When the next reservation begins, ends or is given up, which rings nobody; infinity without one."""
        now = self._clock()
        with self._host.ledger.read() as db:
            found = records.reservations(db)
        points = (each for one in found for each in (one.begins, one.begins + GIVEN_UP_SECONDS, one.ends))
        return min((each for each in points if each > now), default=math.inf)

    def _let_decide(self, ticket: QueuePlace, bell: WakeupPipe) -> bool:
        """Wait for requests ahead that have only just arrived; False if there are none.

        What is kept for them may be free in a moment: it is not decided yet what they get, if anything.
        """
        found = False
        while self._just_asked(ticket):
            found = True
            with interruptible():
                bell.wait(_GLANCE_SECONDS)
        return found

    def _just_asked(self, ticket: QueuePlace) -> bool:
        """Whether a waiter ahead may not have made its first decision yet."""
        now = self._clock()
        there = attending(self._host.places, self._host.waiters(), now, but=ticket.id)
        ahead = takewhile(lambda waiter: waiter.id != ticket.id, there)
        return any(abs(now - waiter.created) < _DECIDES_WITHIN_SECONDS for waiter in ahead)

    def _ahead_of(self, ticket: QueuePlace) -> int | None:
        """How many earlier requests still wait and answer; None if this one was cancelled."""
        there = attending(self._host.places, self._host.waiters(), self._clock(), but=ticket.id)
        ids = [waiter.id for waiter in there]
        return ids.index(ticket.id) if ticket.id in ids else None
