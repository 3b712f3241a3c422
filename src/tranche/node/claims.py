"""Shares of resource claims: a scheduler chose the devices, and the node provides or refuses them.

One look at the machine decides many claims, because a backlog of pods arrives at once. Each claim has its own plan and
allocation, and fails or is undone alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tranche.core.allocation import Allocation, FractionalShare, Grant, NodeView, Phase, shared_memory
from tranche.core.errors import GpuBusy, TrancheError
from tranche.core.keeper import ChosenFor, ClaimKeeper, Keeper, PlacedPodKeeper
from tranche.core.request import Request
from tranche.core.state import GpuProcess
from tranche.node.host import Host
from tranche.node.mps.mps_daemons import refuse_unavailable_parts
from tranche.node.state.session import boot_id
from tranche.node.store import chronicle, journal, register
from tranche.node.store.holders import takes, write_down
from tranche.node.store.journal import PlanRecord
from tranche.planning.decide.obstacle import Obstacle
from tranche.planning.decide.realise import ChosenDevice, given, realise, realise_again, refusal
from tranche.planning.steps import Step
from tranche.planning.steps.plan import Plan, apply


def _permit_all(view: NodeView) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The share that a scheduler chose for a claim, or a controller for a pod.

    `request` comes nearest to what the keeper asked for. `permit` raises a TrancheError when the viewed machine may not give the
    share now; it is not called for a keeper that already has the share.
    """

    keeper: ChosenFor
    request: Request
    grants: tuple[ChosenDevice, ...]
    permit: Callable[[NodeView], None] = field(default=_permit_all, compare=False)


@dataclass(frozen=True, slots=True)
class ReservedClaim:
    """A claim's reserved allocation. `plan_id` names the plan to carry out, "" when there is none."""

    allocation: Allocation
    plan_id: str = ""


@dataclass(frozen=True, slots=True)
class _Decision:
    promised: Allocation
    plan: Plan
    superseded: tuple[Allocation, ...] = ()
    known: bool = False


class ClaimRegister:
    """The claims in one host's register."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def promise(self, orders: Sequence[ClaimRequest]) -> tuple[ReservedClaim | TrancheError | None, ...]:
        """Decide on all orders after one look and record the promises; returns a promise or an error for each order.

        Carry out the plans of one GPU in the order of the promises. None means that an earlier plan removes something where this
        order would go: ask again when the earlier plans have ended.
        """
        with self._host.deciding() as (view, _):
            answers: list[ReservedClaim | TrancheError | None] = []
            steps: list[Step] = []
            with self._host.ledger.write() as db:
                # Read once: `steps` holds what the plans of these orders take.
                plans = journal.running_plans(db)
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
            self._host.boundary()
        return tuple(answers)

    def fulfil(self, promise: ReservedClaim) -> Allocation:
        """Carry out the promise's plan and return the active allocation. A failure undoes the plan and ends the promise."""
        allocation = promise.allocation
        if promise.plan_id:
            self._host.carry_out(promise.plan_id, allocation.id)
        if allocation.phase is not Phase.ACTIVE:
            refuse_unavailable_parts(self._host.daemons, self._host.ledger, allocation)
        active = allocation._replace(phase=Phase.ACTIVE)
        if promise.plan_id or allocation.phase is not Phase.ACTIVE:
            with self._host.ledger.write() as db:
                register.activate_allocation(db, allocation.id)
                note, now = f"for {allocation.keeper}", self._host.clock()
                chronicle.granted(db, now, active, plan_id=promise.plan_id, waiter_id="", note=note)
            self._host.boundary()
        return active

    def give_back(self, uid: str, *, why: str) -> bool:
        """Take back the shares of the claim or pod with that uid; returns whether it had any. Instances stay, idle."""
        with self._host.ledger.read() as db:
            held = _by_uid(register.allocations(db)).get(uid, ())
        if not held:
            return False
        # Note it first: no other process would if this one were killed after freeing the share.
        self._host.given_back([grant for each in held for grant in each.grants])
        with self._host.ledger.write() as db:
            for each in held:
                chronicle.released(db, self._host.clock(), each.id, why)
                register.remove_allocation(db, each.id)
        self._host.boundary()
        return True

    def held(self) -> Mapping[str, tuple[Allocation, ...]]:
        """The registered shares of claims, by uid. Queries no GPU."""
        with self._host.ledger.read() as db:
            return claims_in(register.allocations(db))

    def note_pods(self, pods: Mapping[str, Sequence[str]]) -> None:
        """Record which pods use which claims, both by uid; skips claims that have nothing."""
        with self._host.ledger.write() as db:
            for uid, held in claims_in(register.allocations(db)).items():
                for each in held if uid in pods else ():
                    assert isinstance(each.keeper, ClaimKeeper)
                    register.set_keeper(db, each.id, each.keeper.with_pods(pods[uid]))
        self._host.boundary()

    def held_by_pods(self) -> Mapping[str, tuple[Allocation, ...]]:
        """The shares that a controller chose for pods, by uid. Queries no GPU."""
        with self._host.ledger.read() as db:
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
                _refuse_used(view, same, f"part of the share of {order.keeper} is gone")
            return _Decision(same._replace(keeper=_joined(same.keeper, order.keeper)), answer, known=True)
        order.permit(view)
        for each in known:
            _refuse_used(view, each, f"{order.keeper} already has a different share")
        others = tuple(each for each in view.allocations if each not in known)
        answer = realise(replace(view, allocations=others), order.grants, purpose)
        if isinstance(answer, Obstacle):
            raise refusal(answer)
        allocation = Allocation(
            self._host.new_id(),
            order.request,
            order.grants,
            Phase.PREPARING,
            self._host.clock(),
            keeper=order.keeper,
        )
        for each in known:
            allocation = allocation._replace(keeper=_joined(each.keeper, allocation.keeper))
        return _Decision(allocation, answer, superseded=known)

    def _write_down(
        self, db: sqlite3.Connection, decision: _Decision, view: NodeView, plans: Sequence[PlanRecord]
    ) -> ReservedClaim:
        allocation, plan = decision.promised, decision.plan
        plan_id = "" if plan.empty else self._host.new_id()
        db.execute("SAVEPOINT promising")
        try:
            if not decision.known:
                memory = shared_memory(allocation.grants, view.node)
                superseded = [each.id for each in decision.superseded]
                write_down(db, allocation, superseded, memory, plans)
            else:
                register.set_keeper(db, allocation.id, allocation.keeper)
            if plan_id:
                self._host.open_plan(db, plan_id, plan, view, allocation.id)
        except BaseException:
            db.execute("ROLLBACK TO promising")
            raise
        finally:
            db.execute("RELEASE promising")
        return ReservedClaim(allocation, plan_id)


def _joined(before: Keeper, now: Keeper) -> Keeper:
    """Merge what was known of a keeper before with what is known now."""
    if isinstance(before, ClaimKeeper) and isinstance(now, ClaimKeeper):
        return replace(before.with_pods(now.pods), others=before.others or now.others, boot=now.boot)
    return now


def claims_in(allocations: Sequence[Allocation]) -> Mapping[str, tuple[Allocation, ...]]:
    """The allocations of claims, by the claim's uid."""
    return {uid: held for uid, held in _by_uid(allocations).items() if isinstance(held[0].keeper, ClaimKeeper)}


def _by_uid(allocations: Sequence[Allocation]) -> Mapping[str, tuple[Allocation, ...]]:
    """The allocations that others chose for claims and pods, by uid. Uids are unique in a cluster."""
    found: dict[str, tuple[Allocation, ...]] = {}
    for each in allocations:
        if isinstance(each.keeper, ChosenFor):
            found[each.keeper.uid] = (*found.get(each.keeper.uid, ()), each)
    return found


def processes_of(grants: Sequence[Grant], view: NodeView) -> tuple[GpuProcess, ...]:
    """The processes that the driver lists on exclusive grants. On a part, it does not tell which user they belong to.

    The driver lists none on a lost GPU; see `may_be_lost`.
    """
    gpus = {gpu.uuid: gpu for gpu in view.node}
    found: list[GpuProcess] = []
    for grant in grants:
        gpu = gpus.get(grant.gpu_uuid)
        if isinstance(grant, FractionalShare) or gpu is None:
            continue
        if grant.slot is None:
            found += gpu.all_processes
        elif (instance := gpu.instance_in(grant.slot.place)) is not None:
            found += instance.processes
    return tuple(found)


def may_be_lost(grants: Sequence[Grant], view: NodeView) -> bool:
    """Whether a grant may be on a lost GPU, which the driver may list under no known UUID."""
    lost = {gpu.uuid for gpu in view.node if gpu.lost}
    shown = {gpu.uuid for gpu in view.node if not gpu.lost}
    return bool(lost) and any(grant.gpu_uuid not in shown for grant in grants)


def _refuse_used(view: NodeView, allocation: Allocation, what: str) -> None:
    users = processes_of(allocation.grants, view)
    if users:
        raise GpuBusy(
            f"{what}; the share is still in use by {', '.join(map(str, users))}", hint="wait for it to end, or stop it"
        )


def _promised(view: NodeView, decision: _Decision) -> NodeView:
    """The view after the promise is fulfilled."""
    gone = {each.id for each in decision.superseded}
    rest = replace(view, allocations=tuple(each for each in view.allocations if each.id not in gone))
    after = apply(decision.plan, rest)
    return after if decision.known else given(after, decision.promised.id, decision.promised.grants)


def as_given(grants: Sequence[Grant]) -> tuple[Grant, ...]:
    """The grants as given, even if their limits were lost since."""
    return tuple(each._replace(unlimited=False) if isinstance(each, FractionalShare) else each for each in grants)
