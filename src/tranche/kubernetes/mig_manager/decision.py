"""Decides the next step towards a node's layout: everything known goes in, one decision comes out. Pure, and without memory.

A decision says what the node should show, what to write, and at most one piece of work. The manager carries it out, looks again
and decides again, until there is nothing to write and no work. So an interruption does no harm at any point. All memory is on the
node (labels and annotations) and in the ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from tranche.core.allocation import Allocation, NodeView, devices
from tranche.core.errors import GpuBusy, KubeletUnavailable, KubernetesUnavailable, TrancheError
from tranche.core.layout import Layout
from tranche.kubernetes.api.objects import KubeNode, KubePod, PodRef
from tranche.kubernetes.mig_manager import operands
from tranche.kubernetes.mig_manager.drain import (
    RETRY_SECONDS,
    InUsePolicy,
    between_words,
    cordoning,
    describe_users,
    drainable,
    pods_having,
    pods_of,
)
from tranche.kubernetes.mig_manager.state import (
    ATTEMPT_ANNOTATION,
    NOTHING_ASKED,
    REBOOT_SPENT,
    MigState,
    Moment,
    Report,
    ReportReason,
    RetryState,
    attempt_text,
    needed,
    parse_attempt,
    wanted_layout,
)
from tranche.kubernetes.rollout.ticket import LayoutChangeState, RolloutPermission, RolloutStatus
from tranche.planning.layouts.named_layouts import LayoutList
from tranche.planning.layouts.reconfigure import (
    LayoutDecision,
    lost_error,
    plan_after_blockers,
    plan_beside_blockers,
    plan_layout,
)
from tranche.planning.occupancy.layout_occupancy import holder_text
from tranche.planning.steps import TakesGpu, TakesInstance, TakesRoom, TakesSharing
from tranche.planning.steps.plan import Plan

_LOOK_AT_OPERANDS_SECONDS = 1.0
_REBOOT_TAKES_SECONDS = 60.0
# These pass by themselves: the state stays pending, and the next try comes after the usual wait.
_PASSING = frozenset({GpuBusy.reason, KubeletUnavailable.reason, KubernetesUnavailable.reason})


class LayoutTask(StrEnum):
    """Work beyond writing: cut GPUs, or set their modes and restart the machine."""

    NONE = "none"
    CUT = "cut"
    REBOOT = "reboot"


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """All that a decision depends on.

    `view` counts pods as allocations. `rivals` names other managers of the node, each as a phrase. `eviction_answers` is what the
    API server said when it refused an eviction. `trusted` are the namespaces whose pods may be operands. `unseen` says why
    layouts or GPUs could not be read; the view is then empty. `boot` reports a cut at boot that failed. `turn` is what the
    rollout lets the node do, None without one. `protected` are the ids of allocations that came while the layout waited; see
    `NewPodTracker`.
    """

    node: KubeNode
    layouts: LayoutList
    view: NodeView
    pods: tuple[KubePod, ...]
    now: Moment
    policy: InUsePolicy = InUsePolicy.WAIT
    with_reboot: bool = False
    rivals: tuple[str, ...] = ()
    eviction_answers: Mapping[PodRef, str] = field(default_factory=dict)
    trusted: frozenset[str] = frozenset()
    unseen: TrancheError | None = None
    boot: Report | None = None
    turn: RolloutPermission | None = None
    protected: frozenset[str] = frozenset()

    @property
    def attempt(self) -> RetryState | None:
        """The failed attempt that the node remembers."""
        return parse_attempt(self.node.annotations.get(ATTEMPT_ANNOTATION))

    def asks_reboot(self, attempt: RetryState) -> bool:
        """Whether that failed attempt calls for a restart that is still allowed and has not happened yet."""
        return self.with_reboot and attempt.asked_reboot(self.now.boot)


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """What to write and to do now, in the order of the fields.

    `draining` are the devices closed to everyone until the next decision. `report` is None when the node asks for no layout.
    `labels` and `annotations` hold only what changes. `look_again` is in seconds, None when only news can change the decision.
    `wish` is how the node stands in the rollout, None to leave it. `kept` are GPUs that have the layout, with slices that were
    made for requests: the layout wants these now.
    """

    report: Report | None
    draining: frozenset[str] = frozenset()
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    unschedulable: bool | None = None
    evict: tuple[PodRef, ...] = ()
    work: LayoutTask = LayoutTask.NONE
    look_again: float | None = None
    wish: RolloutStatus | None = None
    kept: frozenset[str] = frozenset()

    @property
    def writes_node(self) -> bool:
        """Whether there are labels or annotations to write."""
        return bool(self.labels or self.annotations)


def decide(situation: NodeObservation) -> NodeDecision:
    """The next thing to do."""
    decision = _decide(situation)
    if decision.wish is not None or situation.unseen is not None:
        return decision
    name, report = wanted_layout(situation.node), decision.report
    if report is not None and report.state is MigState.FAILED:
        return replace(decision, wish=RolloutStatus(LayoutChangeState.FAILED, name, message=report.message))
    return replace(decision, wish=RolloutStatus(LayoutChangeState.DONE, name))


def _decide(situation: NodeObservation) -> NodeDecision:
    name = wanted_layout(situation.node)
    if situation.rivals:
        return _conflict(situation, name)
    if not name:
        # The labels answer the label that names a layout; a cut at boot is reported by the condition and an event.
        return replace(_at_rest(situation, None, forget=True), report=situation.boot)
    if situation.unseen is not None:
        state = MigState.PENDING if situation.unseen.reason in _PASSING else MigState.FAILED
        message = f"cannot decide on the layout: {_sentence(situation.unseen)}"
        return _at_rest(situation, Report(state, situation.unseen.reason, message), look_again=RETRY_SECONDS)
    try:
        layout = situation.layouts.select(name, situation.view.node)
        change = plan_layout(situation.view, layout, protected=situation.protected)
    except TrancheError as error:
        return _at_rest(situation, _failure(error.reason, _sentence(error)))
    if change.plan.empty and not change.blockers and change.lost:
        lost = lost_error(change.purpose, change.lost, "all other GPUs match the layout")
        return _at_rest(situation, _failure(lost.reason, _sentence(lost)), forget=True)
    if change.plan.empty and not change.blockers:
        message = "; ".join((f"the GPUs have the layout '{name}'", *change.warnings))
        applied = _at_rest(situation, Report(MigState.SUCCESS, ReportReason.APPLIED, message), forget=True)
        requested = {slot.gpu_uuid for slot in situation.view.requested}
        return replace(applied, kept=frozenset(requested.intersection(each.gpu.uuid for each in change.changes)))
    decision = _change(situation, layout, change)
    if decision.report is not None and decision.report.state is MigState.FAILED:
        return decision
    return replace(decision, wish=RolloutStatus(LayoutChangeState.WANTED, name, layout_digest(layout)))


def pods_that_matter(
    pods: Iterable[KubePod], allocations: Iterable[Allocation], trusted: Collection[str]
) -> tuple[KubePod, ...]:
    """The node's pods on which a decision can depend: they have devices, or may be operands or another manager."""
    having = frozenset(pods_having(allocations))
    return tuple(pod for pod in pods if pod.ref in having or pod.ref.namespace in trusted)


def work_plan(view: NodeView, layout: Layout, policy: InUsePolicy, protected: frozenset[str] = frozenset()) -> Plan:
    """The plan for work of kind CUT, decided again under the lock; GpuBusy when everything is blocked, or must not be cut."""
    change = plan_layout(view, layout, protected=protected)
    if not change.blockers:
        return change.plan
    if policy is InUsePolicy.REFUSE:
        change.refuse_if_blocked()
    plan = plan_beside_blockers(view, change, plan_after_blockers(view, layout, change))
    if plan.empty:
        change.refuse_if_blocked()
    return plan


def reboot_plan(view: NodeView, layout: Layout) -> Plan:
    """The plan for work of kind REBOOT before the restart: it requests the modes, which stay pending."""
    change = plan_layout(view, layout, mode_only=True, skip_reset=True)
    change.refuse_if_blocked()
    return change.plan


def draining_by(plan: Plan, view: NodeView) -> frozenset[str]:
    """The devices that the plan takes away: slices, and for a change of MIG mode the GPU and everything on it."""
    gone: set[str] = set()
    for step in plan.steps:
        gpu = view.node.gpu(step.gpu_uuid)
        for taking in step.takes:
            match taking:
                case TakesInstance(slot):
                    instance = gpu.instance_in(slot)
                    gone.update(device.uuid for device in (instance.compute_instances if instance else ()))
                case TakesGpu():
                    gone.add(gpu.uuid)
                    gone.update(device.uuid for each in gpu.instances for device in each.compute_instances)
                case TakesRoom() | TakesSharing():
                    pass
                case _:
                    assert_never(taking)
    return frozenset(gone)


def failed_attempt(
    situation: NodeObservation, layout: Layout, error: TrancheError, *, changed_mode: bool
) -> RetryState:
    """The record of work that failed. `changed_mode` says whether it should have changed the MIG mode of some GPU."""
    digest = layout_digest(layout)
    last = situation.attempt
    again = last is not None and last.digest == digest
    failures = last.failures + 1 if again and last is not None else 1
    message = _sentence(error)
    asked = last.reboot if again and last is not None else ""
    if asked == situation.now.boot and not situation.with_reboot:
        asked = ""
    reboot = asked
    if asked:
        reboot = asked if asked == situation.now.boot else REBOOT_SPENT
        if changed_mode and reboot == REBOOT_SPENT:
            message = f"MIG mode change did not take effect after rebooting: {message}"
    elif situation.with_reboot and changed_mode and error.reason not in _PASSING:
        reboot = situation.now.boot
    restart_failed = asked == situation.now.boot != "" and error.reason not in _PASSING
    return RetryState(digest, failures, situation.now, error.reason, message, reboot, restart_failed)


def layout_digest(layout: Layout) -> str:
    """A short digest of the layout's name and content."""
    return hashlib.sha256(repr(layout).encode()).hexdigest()[:16]


def _change(situation: NodeObservation, layout: Layout, change: LayoutDecision) -> NodeDecision:
    digest = layout_digest(layout)
    attempt = situation.attempt
    plan, later = change.plan, change.plan
    if change.blockers:
        later = plan_after_blockers(situation.view, layout, change)
        plan = plan_beside_blockers(situation.view, change, later)
    waits = situation.turn is not None and not situation.turn.allows(digest)
    draining = frozenset() if waits else draining_by(later, situation.view)
    if attempt is not None and attempt.digest == digest:
        wait = attempt.wait(situation.now)
        if wait > 0 and not attempt.rebooted(situation.now.boot):
            return _patience(situation, attempt, wait, draining)
        if situation.asks_reboot(attempt) and not waits:
            return _reboot(situation)
    if change.blockers and situation.policy is InUsePolicy.REFUSE:
        message = f"{change.purpose} was refused, and nothing changed: {describe_users(change.blockers)}"
        return _at_rest(situation, _failure(ReportReason.IN_USE, message))
    if waits and situation.turn is not None:
        message = f"{change.purpose} waits for its turn: {situation.turn.why_not}"
        return _at_rest(situation, Report(MigState.PENDING, ReportReason.TURN, message))
    if not plan.empty:
        return _cut(situation, change, digest, draining)
    refs = [ref for user in change.blockers for ref in pods_of(user)]
    users = describe_users(change.blockers, situation.eviction_answers)
    report = Report(MigState.PENDING, ReportReason.IN_USE, f"{change.purpose} is waiting: {users}")
    return _evict_or_wait(situation, report, refs, draining)


def _cut(situation: NodeObservation, change: LayoutDecision, digest: str, draining: frozenset[str]) -> NodeDecision:
    """Pause the operands, wait for their end, cut."""
    paused = operands.pause(situation.node)
    labels = {**situation.node.labels, **{key: value for key, value in paused.items() if value is not None}}
    running = operands.still_running(labels, situation.pods, situation.trusted)
    paused_for = operands.paused_for(situation.node, situation.now)
    if running and paused_for is not None and paused_for > operands.PATIENCE_SECONDS:
        named = ", ".join(str(pod.ref) for pod in running)
        message = f"{change.purpose}: the operands did not stop within {operands.PATIENCE_SECONDS:g} s: {named}"
        last = situation.attempt
        failures = last.failures + 1 if last is not None and last.digest == digest else 1
        attempt = RetryState(digest, failures, situation.now, ReportReason.OPERANDS_STILL_RUN, message)
        decision = _at_rest(situation, _failure(attempt.reason, message))
        return replace(decision, annotations={**decision.annotations, ATTEMPT_ANNOTATION: attempt_text(attempt)})
    report = Report(MigState.PENDING, ReportReason.APPLYING, f"{change.purpose} is being applied")
    if running:
        named = ", ".join(str(pod.ref) for pod in running)
        report = Report(
            MigState.PENDING, ReportReason.OPERANDS, f"{change.purpose} waits for the operands to stop: {named}"
        )
    annotations: dict[str, str | None] = {}
    if paused_for is None and (paused or operands.paused_here(situation.node)):
        annotations[operands.SINCE_ANNOTATION] = str(situation.now)
    return NodeDecision(
        report,
        draining=draining,
        labels={**needed(report.labels, situation.node.labels), **paused},
        annotations=annotations,
        work=LayoutTask.NONE if running else LayoutTask.CUT,
        look_again=_LOOK_AT_OPERANDS_SECONDS if running else None,
    )


def _evict_or_wait(
    situation: NodeObservation, report: Report, refs: Collection[PodRef], draining: frozenset[str]
) -> NodeDecision:
    """Wait for what is in use. The policy DRAIN evicts the pods among it."""
    drains = situation.policy is InUsePolicy.DRAIN
    leaving = drainable(refs, situation.pods) if drains else ()
    if not leaving:
        cordoned = None if drains and between_words(refs, situation.pods) else False
        return _at_rest(situation, report, draining=draining, cordoned=cordoned)
    return replace(
        _at_rest(situation, report, draining=draining, cordoned=True),
        evict=tuple(pod.ref for pod in leaving if not pod.terminating),
        look_again=RETRY_SECONDS,
    )


def _reboot(situation: NodeObservation) -> NodeDecision:
    """A restart ends everything on the node, so it waits for all holders of GPUs, as a cut does."""
    holders = sorted({holder_text(allocation) for allocation in situation.view.allocations})
    draining = frozenset(devices(situation.view.node))
    if holders:
        message = f"the MIG mode change needs a restart, which is waiting for these GPU holders: {', '.join(holders)}"
        if situation.policy is InUsePolicy.REFUSE:
            return _at_rest(situation, _failure(ReportReason.IN_USE, message))
        refs = pods_having(situation.view.allocations)
        return _evict_or_wait(situation, Report(MigState.PENDING, ReportReason.IN_USE, message), refs, draining)
    report = Report(
        MigState.REBOOTING, ReportReason.REBOOT, "restarting the machine to change the MIG mode of its GPUs"
    )
    return replace(
        _at_rest(situation, report, draining=draining), work=LayoutTask.REBOOT, look_again=_REBOOT_TAKES_SECONDS
    )


def _patience(situation: NodeObservation, attempt: RetryState, wait: float, draining: frozenset[str]) -> NodeDecision:
    """Wait for the next try. While the layout is pending, what it will take stays marked; a failed layout drops its marks until
    then.
    """
    passing = attempt.reason in _PASSING and situation.policy is not InUsePolicy.REFUSE
    goes_on = passing or (situation.asks_reboot(attempt) and not attempt.restart_failed)
    report = Report(
        MigState.PENDING if goes_on else MigState.FAILED,
        attempt.reason,
        f"{attempt.message} (attempt {attempt.failures}; Tranche will try again)",
    )
    return _at_rest(situation, report, draining=draining if goes_on else frozenset(), look_again=wait)


def _conflict(situation: NodeObservation, name: str) -> NodeDecision:
    named = ", ".join(situation.rivals)
    report = (
        _failure(
            ReportReason.MANAGER_CONFLICT, f"another MIG manager runs on this node: {named}; Tranche changes nothing"
        )
        if name
        else None
    )
    # If this manager did not pause them, the other one did; it is at work and will restore them.
    return _at_rest(situation, report, restore=operands.paused_here(situation.node), look_again=RETRY_SECONDS)


def _at_rest(
    situation: NodeObservation,
    report: Report | None,
    *,
    draining: frozenset[str] = frozenset(),
    cordoned: bool | None = False,
    forget: bool = False,
    restore: bool = True,
    look_again: float | None = None,
) -> NodeDecision:
    """Show the report while nothing is cut: operands run. `cordoned` says whether the node is cordoned; None leaves it."""
    annotations: dict[str, str | None] = {}
    if operands.paused_here(situation.node):
        annotations[operands.SINCE_ANNOTATION] = None
    if forget and ATTEMPT_ANNOTATION in situation.node.annotations:
        annotations[ATTEMPT_ANNOTATION] = None
    unschedulable, marks = cordoning(situation.node, wanted=cordoned)
    return NodeDecision(
        report,
        draining=draining,
        labels={**_shown(situation, report), **(operands.restore(situation.node) if restore else {})},
        annotations={**annotations, **marks},
        unschedulable=unschedulable,
        look_again=look_again,
    )


def _shown(situation: NodeObservation, report: Report | None) -> dict[str, str | None]:
    return needed(NOTHING_ASKED if report is None else report.labels, situation.node.labels)


def _failure(reason: str, message: str) -> Report:
    return Report(MigState.FAILED, reason, message)


def _sentence(error: TrancheError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
