"""Shares of resource claims: a scheduler chose the devices, and the node makes them true or refuses.

Many claims are decided under one look at the machine, because a backlog of pods comes at once. Each has a plan and an allocation
of its own, and fails or is undone alone.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from tranche.core.allocation import Allocation, FractionalShare, Grant, NodeView, Phase, shared_memory
from tranche.core.errors import GpuBusy, TrancheError
from tranche.core.grid import PlacedInstance
from tranche.core.keeper import ChosenFor, ClaimKeeper, Keeper, PlacedPodKeeper
from tranche.core.request import Request
from tranche.core.state import GpuProcess
from tranche.node.state.session import boot_id
from tranche.node.store import chronicle, register
from tranche.node.store.holders import HolderRegister, takes
from tranche.node.store.journal import PlanRecord
from tranche.node.store.ledger import Ledger
from tranche.planning.decide.obstacle import Obstacle
from tranche.planning.decide.realise import ChosenDevice, given, realise, realise_again, refusal
from tranche.planning.steps import Step
from tranche.planning.steps.plan import Plan, apply


def _permit_all(view: NodeView) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a claim is to have, as the scheduler chose it, or a pod, as a controller did.

    `request` is what comes nearest to what it asked for. `permit` raises a TrancheError when the machine as it is seen may not
    give that now; whoever has it already is not asked.
    """

    keeper: ChosenFor
    request: Request
    grants: tuple[ChosenDevice, ...]
    permit: Callable[[NodeView], None] = field(default=_permit_all, compare=False)


@dataclass(frozen=True, slots=True)
class ReservedClaim:
    """A claim's room is its own. `plan_id` is the change that is still to be carried out, "" when there is none."""

    allocation: Allocation
    plan_id: str = ""


@dataclass(frozen=True, slots=True)
class _Decision:
    promised: Allocation
    plan: Plan
    superseded: tuple[Allocation, ...] = ()
    known: bool = False


class ClaimRegister:
    """The claims' part of one host's register. `deciding` holds the decision lock; `carry_out` carries a journaled plan out.

    `refuse_unavailable` is GpuBusy, and the allocation is gone, when an MPS server lets nobody in.
    """

    def __init__(
        self,
        ledger: Ledger,
        holders: HolderRegister,
        *,
        deciding: Callable[[float | None], AbstractContextManager[None]],
        look: Callable[[], NodeView],
        open_plan: Callable[[sqlite3.Connection, str, Plan, NodeView, str], None],
        carry_out: Callable[[str, str], None],
        refuse_unavailable: Callable[[Allocation], None],
        given_back: Callable[[Sequence[Grant]], None],
        boundary: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._holders = holders
        self._deciding = deciding
        self._look = look
        self._open_plan = open_plan
        self._carry_out = carry_out
        self._refuse_unavailable = refuse_unavailable
        self._given_back = given_back
        self._boundary = boundary
        self._noting = threading.Lock()

    def promise(self, orders: Sequence[ClaimRequest]) -> tuple[ReservedClaim | TrancheError | None, ...]:
        """Decide on all of these after one look, and write what is promised; for each order its promise or why it has none.

        Plans of one GPU must be carried out in the order of the promises. None stands for an order that must be asked for again
        when the plans before it have ended, since one of them takes something away where this one is to be.
        """
        with self._deciding(None):
            view = self._look()
            answers: list[ReservedClaim | TrancheError | None] = []
            steps: list[Step] = []
            with self._ledger.write() as db:
                # Read once: what the plans of these orders take, `steps` says.
                plans = self._holders.open_plans(db)
                for order in orders:
                    if any(takes(step, grant) for step in steps for grant in order.grants):
                        answers.append(None)
                        continue
                    try:
                        decision = self._decide(view, order)
                        promise = self._write_down(db, decision, view, plans)
                    except TrancheError as error:
                        answers.append(error)
                        continue
                    answers.append(promise)
                    steps += decision.plan.steps
                    view = _promised(view, decision)
            self._boundary()
        return tuple(answers)

    def fulfil(self, promise: ReservedClaim) -> Allocation:
        """Carry the promise's plan out: the allocation, active. What fails is undone, and the promise is over."""
        allocation = promise.allocation
        if promise.plan_id:
            self._carry_out(promise.plan_id, allocation.id)
        if allocation.phase is not Phase.ACTIVE:
            self._refuse_unavailable(allocation)
        active = replace(allocation, phase=Phase.ACTIVE)
        if promise.plan_id or allocation.phase is not Phase.ACTIVE:
            with self._ledger.write() as db:
                register.activate_allocation(db, allocation.id)
                note = f"for {allocation.keeper}"
                clock = self._holders.clock()
                chronicle.granted(db, clock, active, plan_id=promise.plan_id, waiter_id="", note=note)
            self._boundary()
        return active

    def give_back(self, uid: str, *, why: str) -> bool:
        """Take back what the claim or pod of that uid has; whether it had something. Instances stay, idle."""
        with self._ledger.read() as db:
            held = _by_uid(register.allocations(db)).get(uid, ())
        if not held:
            return False
        # Noted first: nobody else would, were this process killed when the share is free.
        with self._noting:
            self._given_back([grant for each in held for grant in each.grants])
        with self._ledger.write() as db:
            for each in held:
                chronicle.released(db, self._holders.clock(), each.id, why)
                register.remove_allocation(db, each.id)
        self._boundary()
        return True

    def held(self) -> Mapping[str, tuple[Allocation, ...]]:
        """What claims have by the register, by uid; no GPU is asked."""
        with self._ledger.read() as db:
            return claims_in(register.allocations(db))

    def note_pods(self, pods: Mapping[str, Sequence[str]]) -> None:
        """Have the register know by which pods claims are used, both by their uids; claims that have nothing are passed over."""
        with self._ledger.write() as db:
            for uid, held in claims_in(register.allocations(db)).items():
                for each in held if uid in pods else ():
                    assert isinstance(each.keeper, ClaimKeeper)
                    register.set_keeper(db, each.id, each.keeper.with_pods(pods[uid]))
        self._boundary()

    def held_by_pods(self) -> Mapping[str, tuple[Allocation, ...]]:
        """What pods have for which a controller chose, by uid; no GPU is asked."""
        with self._ledger.read() as db:
            found = _by_uid(register.allocations(db))
        return {uid: held for uid, held in found.items() if isinstance(held[0].keeper, PlacedPodKeeper)}

    def _decide(self, view: NodeView, order: ClaimRequest) -> _Decision:
        purpose = f"for {order.keeper}"
        if isinstance(order.keeper, ClaimKeeper):
            order = replace(order, keeper=replace(order.keeper, boot=boot_id()))
        known = _by_uid(view.allocations).get(order.keeper.uid, ())
        same = next((each for each in known if as_given(each.grants) == as_given(order.grants)), None)
        if same is not None:
            answer = realise_again(view, same, purpose)
            if isinstance(answer, Obstacle):
                raise refusal(answer)
            if not answer.empty:
                _refuse_used(view, same, f"a part of what {order.keeper} has is gone")
            return _Decision(replace(same, keeper=_joined(same.keeper, order.keeper)), answer, known=True)
        order.permit(view)
        for each in known:
            _refuse_used(view, each, f"{order.keeper} was given something else before")
        others = tuple(each for each in view.allocations if each not in known)
        answer = realise(replace(view, allocations=others), order.grants, purpose)
        if isinstance(answer, Obstacle):
            raise refusal(answer)
        allocation = Allocation(
            self._holders.new_id(),
            order.request,
            order.grants,
            Phase.PREPARING,
            self._holders.clock(),
            keeper=order.keeper,
        )
        for each in known:
            allocation = replace(allocation, keeper=_joined(each.keeper, allocation.keeper))
        return _Decision(allocation, answer, superseded=known)

    def _write_down(
        self, db: sqlite3.Connection, decision: _Decision, view: NodeView, plans: Sequence[PlanRecord]
    ) -> ReservedClaim:
        allocation, plan = decision.promised, decision.plan
        plan_id = "" if plan.empty else self._holders.new_id()
        db.execute("SAVEPOINT promising")
        try:
            if not decision.known:
                memory = shared_memory(allocation.grants, view.node)
                superseded = [each.id for each in decision.superseded]
                self._holders.write_down(db, allocation, superseded, memory, plans)
            else:
                register.set_keeper(db, allocation.id, allocation.keeper)
            if plan_id:
                self._open_plan(db, plan_id, plan, view, allocation.id)
        except BaseException:
            db.execute("ROLLBACK TO promising")
            raise
        finally:
            db.execute("RELEASE promising")
        return ReservedClaim(allocation, plan_id)


def _joined(before: Keeper, now: Keeper) -> Keeper:
    """The keeper, which is one, as it was known before and is known now."""
    if isinstance(before, ClaimKeeper) and isinstance(now, ClaimKeeper):
        return replace(before.with_pods(now.pods), others=before.others or now.others, boot=now.boot)
    return now


def claims_in(allocations: Sequence[Allocation]) -> Mapping[str, tuple[Allocation, ...]]:
    """The allocations that claims have, by the claim's uid."""
    return {uid: held for uid, held in _by_uid(allocations).items() if isinstance(held[0].keeper, ClaimKeeper)}


def _by_uid(allocations: Sequence[Allocation]) -> Mapping[str, tuple[Allocation, ...]]:
    """What somebody else chose for claims and pods, by their uids, which no two objects of a cluster share."""
    found: dict[str, tuple[Allocation, ...]] = {}
    for each in allocations:
        if isinstance(each.keeper, ChosenFor):
            found[each.keeper.uid] = (*found.get(each.keeper.uid, ()), each)
    return found


def processes_of(grants: Sequence[Grant], view: NodeView) -> tuple[GpuProcess, ...]:
    """The processes that the driver shows on what one alone has: of a part of a device it does not say whose they are.

    It shows none on a GPU that it has lost; see `may_be_lost`.
    """
    gpus = {gpu.uuid: gpu for gpu in view.node}
    found: list[GpuProcess] = []
    for grant in grants:
        gpu = gpus.get(grant.gpu_uuid)
        if isinstance(grant, FractionalShare) or gpu is None:
            continue
        if grant.slot is None:
            found += gpu.all_processes
        elif (instance := gpu.instance_in(PlacedInstance(grant.slot.profile, grant.slot.placement))) is not None:
            found += instance.processes
    return tuple(found)


def may_be_lost(grants: Sequence[Grant], view: NodeView) -> bool:
    """Whether one is on a GPU that the driver has lost: that one may be shown under no UUID that anybody knows."""
    lost = {gpu.uuid for gpu in view.node if gpu.lost}
    shown = {gpu.uuid for gpu in view.node if not gpu.lost}
    return bool(lost) and any(grant.gpu_uuid not in shown for grant in grants)


def _refuse_used(view: NodeView, allocation: Allocation, what: str) -> None:
    users = processes_of(allocation.grants, view)
    if users:
        raise GpuBusy(f"{what}, and {', '.join(map(str, users))} still uses it", hint="wait for its end, or stop it")


def _promised(view: NodeView, decision: _Decision) -> NodeView:
    """The view as it will be when the promise is kept."""
    gone = {each.id for each in decision.superseded}
    rest = replace(view, allocations=tuple(each for each in view.allocations if each.id not in gone))
    after = apply(decision.plan, rest)
    return after if decision.known else given(after, decision.promised.id, decision.promised.grants)


def as_given(grants: Sequence[Grant]) -> tuple[Grant, ...]:
    """The grants, whatever has become of their limits."""
    return tuple(replace(each, unlimited=False) if isinstance(each, FractionalShare) else each for each in grants)
