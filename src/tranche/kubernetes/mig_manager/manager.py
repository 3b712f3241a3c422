"""The MIG manager: carries out what tranche.kubernetes.mig_manager.decision decides, looks again, and decides again.

It wakes at news of the node, of the ConfigMap of layouts and of the GPUs, and when its own wait ends. Each round rereads the node
and its pods. If a failure or the end of the process cuts a round short, the next one makes it good.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tranche.core.allocation import NodeView
from tranche.core.errors import HardwareError, KubernetesUnavailable, LedgerUnavailable, StateMoved, TrancheError
from tranche.core.layout import Layout
from tranche.core.state import NodeState
from tranche.kubernetes.api.objects import (
    ConditionStatus,
    EvictionStatus,
    KubeEventType,
    KubeNode,
    KubePod,
    NodeCondition,
    PodRef,
)
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.latest_value import LatestValue, within
from tranche.kubernetes.mig_manager.decision import (
    LayoutTask,
    NodeDecision,
    NodeObservation,
    decide,
    draining_by,
    failed_attempt,
    pods_that_matter,
    reboot_plan,
    work_plan,
)
from tranche.kubernetes.mig_manager.drain import InUsePolicy, NewPodTracker
from tranche.kubernetes.mig_manager.exclusion import Memory, stand, withdrawal
from tranche.kubernetes.mig_manager.layout_source import read_layouts
from tranche.kubernetes.mig_manager.machine_restart import restart_machine
from tranche.kubernetes.mig_manager.operands import other_managers
from tranche.kubernetes.mig_manager.state import (
    ATTEMPT_ANNOTATION,
    CONDITION_TYPE,
    NO_LAYOUT,
    Moment,
    RetryState,
    asking,
    attempt_text,
    failed_boot,
    partitioned_by_system,
    wanted_layout,
)
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.rollout.rollout import Rollout
from tranche.kubernetes.serving.supervisor import FIRST_RETRY_SECONDS, LookResult, Reconciler
from tranche.node.change import keep_for_layout
from tranche.node.state.session import boot_id
from tranche.node.state.state_file import read_state_file, replace_state_file
from tranche.planning.layouts.named_layouts import LayoutList
from tranche.planning.layouts.present_layout import find_mismatches
from tranche.planning.steps.plan import Plan

_LONGEST_PAUSE_SECONDS = 10.0
_WITHDRAWAL_SECONDS = 1.0
_FIRST_LAYOUTS_SECONDS = 5.0
_FIRST_LOOK_SECONDS = 2.0
_SLOW_LOOK_SECONDS = 20.0
_LONGEST_WORK_SECONDS = 600.0  # far longer than any change that makes progress

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MigSettings:
    """How a node's layouts are managed.

    `config_map` is the name of the ConfigMap of layouts in the agent's namespace, "" for none. `default_layout` is for nodes
    whose label names none; "" leaves such a node as it is. `with_reboot` allows a restart of the machine for a MIG mode that does
    not change otherwise; `host_root` is where the host's root is mounted for that. The agent trusts pods in its own namespace and
    in `operator_namespaces` to be NVIDIA's manager and operands. With `heeds_mode` only a node of mode static has layouts.
    """

    config_map: str = ""
    default_layout: str = ""
    policy: InUsePolicy = InUsePolicy.WAIT
    with_reboot: bool = False
    host_root: Path = field(default=Path("/host"))
    operator_namespaces: frozenset[str] = frozenset({"gpu-operator", "kube-system"})
    heeds_mode: bool = False


class MigManager:
    """A component of the node agent. `clock` is the machine's monotonic one, in seconds; `restart` restarts the machine.

    Without a `rollout` the node changes its layout whenever it is told to.
    """

    name = "mig-manager"

    def __init__(
        self,
        services: NodeContext,
        settings: MigSettings,
        *,
        rollout: Rollout | None = None,
        clock: Callable[[], float] = time.monotonic,
        boot: Callable[[], str] = boot_id,
        restart: Callable[[Path], None] = restart_machine,
    ) -> None:
        self._services = services
        self._settings = settings
        self._rollout = rollout
        self._clock = clock
        self._boot = boot
        self._restart = restart
        self.layouts: LatestValue[LayoutList] = LatestValue()
        """The available layouts."""
        trouble = "the MIG manager has not checked the node yet"
        self._reconciler = Reconciler(_log, "cannot manage the layout", trouble=trouble, longest=_LONGEST_PAUSE_SECONDS)
        self._claims: Memory = {}
        self._eviction_answers: dict[PodRef, str] = {}
        self._working_since: float | None = None
        self._newcomers = NewPodTracker()
        self._outdated = False  # whether to reread GPUs and holdings before the next decision
        services.inventory.expect_marks()

    def ready(self) -> Readiness:
        """Ready when the last round was carried out, whatever its result for the layout, and no work has been hanging since."""
        working = 0.0 if self._working_since is None else self._clock() - self._working_since
        if working > _LONGEST_WORK_SECONDS:
            return Readiness(False, f"a layout change has taken {working:.0f} s: the driver does not answer")
        if not self._reconciler.trouble and not self.layouts.synced:
            return Readiness(False, f"ConfigMap {self._config_map} has not been read yet")
        return Readiness(not self._reconciler.trouble, self._reconciler.trouble)

    def _asking(self, node: KubeNode, machine: NodeState) -> KubeNode:
        return asking(node, self._settings.default_layout, machine, heeds_mode=self._settings.heeds_mode)

    def mismatched(self) -> int | None:
        """How many GPUs differ from the wanted layout, by the last look; None if unknown."""
        node, inventory = self._services.node, self._services.inventory.latest
        if not node.synced or node.value is None or not self.layouts.synced or not inventory.synced:
            return None
        state = inventory.value.view.node
        name = wanted_layout(self._asking(node.value, state))
        if not name:
            return None
        try:
            return len(find_mismatches(state, self.layouts.value.select(name, state)))
        except TrancheError:
            return None

    @property
    def _trusted(self) -> frozenset[str]:
        return self._settings.operator_namespaces | {self._services.namespace}

    @property
    def _config_map(self) -> str:
        return f"{self._services.namespace}/{self._settings.config_map}"

    async def run(self) -> None:
        """Manage the node's layout until cancelled."""
        me = manager_name(self._services.host.places.manager_name)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_layouts())
                if self._rollout is not None:
                    group.create_task(self._rollout.run())
                group.create_task(self._rounds(me))
        finally:
            self._services.inventory.mark_draining(frozenset())
            await self._withdraw(me)

    async def _pods_that_matter(self) -> AsyncIterator[tuple[KubePod, ...]]:
        """The pods that matter. A pod that gets a device only later is news of the inventory."""
        before: tuple[KubePod, ...] = ()
        async for pods in self._services.node_pods.changes():
            inventory = self._services.inventory.latest
            allocations = inventory.value.view.allocations if inventory.synced else ()
            after = pods_that_matter(pods, allocations, self._trusted)
            if after != before:
                before = after
                yield after

    async def _follow_layouts(self) -> None:
        if not self._settings.config_map:
            self.layouts.publish(LayoutList())
            return
        namespace, name = self._services.namespace, self._settings.config_map
        async for config_map in self._services.api.watch_config_map(namespace, name):
            self.layouts.publish(await asyncio.to_thread(read_layouts, self._config_map, config_map))
            self._reconciler.wake()

    async def _rounds(self, me: str) -> None:
        for source, patience in (
            (self.layouts, _FIRST_LAYOUTS_SECONDS),
            (self._services.inventory.latest, _FIRST_LOOK_SECONDS),
        ):
            await within(patience, source.first())
        services = self._services
        sources: list[LatestValue[Any]] = [services.node, services.inventory.latest, services.state_problem]
        sources += [] if self._rollout is None else [self._rollout.turn]
        news = (*(each.changes() for each in sources), self._pods_that_matter())

        async def look() -> LookResult:
            return LookResult(again=await self._round(me))

        await self._reconciler.run(look, (), news)

    async def _round(self, me: str) -> float | None:
        """Look, decide, carry out. Returns in how many seconds to look again without news, 0 for at once."""
        api, node_name = self._services.api, self._services.node_name
        node = await api.get_node(node_name)
        standing = stand(node.annotations, me, self._clock(), self._claims)
        if standing.annotations:
            node = await api.patch_node_metadata(node_name, annotations=standing.annotations)
            standing = stand(node.annotations, me, self._clock(), standing.memory)
        self._claims = standing.memory
        situation, not_draining = await self._draining(await self._look(node, standing.rivals))
        decision = decide(situation)
        if self._rollout is not None and decision.wish is not None:
            self._rollout.wish(decision.wish)
        await self._report(situation.node, decision)
        if decision.writes_node:
            await api.patch_node_metadata(node_name, labels=decision.labels, annotations=decision.annotations)
        if not_draining is not None and decision.work is not LayoutTask.CUT:
            raise not_draining  # the report does not depend on it; cordon and evictions do; a cut reads the pods once more
        if decision.unschedulable is not None:
            await api.set_unschedulable(node_name, decision.unschedulable)
        for pod in situation.pods:
            if pod.ref in decision.evict:
                await self._evict(pod)
        if decision.kept:
            await asyncio.to_thread(keep_for_layout, self._services.host, decision.kept)
        if decision.work is not LayoutTask.NONE and not await self._work(situation, decision):
            return FIRST_RETRY_SECONDS
        if decision.work is LayoutTask.CUT or decision.writes_node or decision.unschedulable is not None:
            return 0.0
        waits = [seconds for seconds in (decision.look_again, standing.look_again) if seconds is not None]
        return min(waits, default=None)

    async def _look(self, node: KubeNode, claims: tuple[str, ...]) -> NodeObservation:
        pods = await self._pods()
        rivals = [f"the manager {name}" for name in claims]
        rivals += [f"NVIDIA's MIG manager, pod {pod.ref}" for pod in other_managers(pods, self._trusted)]
        unseen = await self._why_unseen()
        view = self._services.inventory.latest.value.view if unseen is None else NodeView(NodeState(()))
        if (system := partitioned_by_system(node, view)) is not None:
            rivals.append(system)
        ended = None
        node = self._asking(node, view.node)
        if unseen is None and not wanted_layout(node):
            ended = await asyncio.to_thread(self._services.host.boot_ended, self._boot())
        present = {pod.ref for pod in pods}
        self._eviction_answers = {ref: text for ref, text in self._eviction_answers.items() if ref in present}
        return NodeObservation(
            node=node,
            layouts=self.layouts.value if self.layouts.synced else LayoutList(),
            view=view,
            pods=pods,
            now=Moment(self._boot(), self._clock()),
            policy=self._settings.policy,
            with_reboot=self._settings.with_reboot,
            rivals=tuple(rivals),
            eviction_answers=dict(self._eviction_answers),
            trusted=self._trusted,
            unseen=unseen,
            boot=failed_boot(ended),
            turn=None if self._rollout is None else self._rollout.turn.value,
        )

    async def _pods(self) -> tuple[KubePod, ...]:
        """The node's pods as last heard: rivals, operands and pods to evict may be known a moment late."""
        try:
            async with asyncio.timeout(_FIRST_LOOK_SECONDS):
                return await self._services.node_pods.first()
        except TimeoutError:
            return await self._services.api.list_pods_on_node(self._services.node_name)

    async def _why_unseen(self) -> TrancheError | None:
        """Why no decision is possible: layouts or GPUs were not read since the start, or nothing can be written down; else None.

        What was read once counts as current.
        """
        if self._services.state_problem.synced and self._services.state_problem.value:
            return LedgerUnavailable(self._services.state_problem.value, hint="see: tranche doctor")
        if not self.layouts.synced:
            hint = "see the agent's log, and check that its account can read ConfigMaps in its namespace"
            return KubernetesUnavailable(f"cannot read the layouts in ConfigMap {self._config_map}", hint=hint)
        inventory = self._services.inventory
        if inventory.latest.synced:
            return None
        try:
            async with asyncio.timeout(_SLOW_LOOK_SECONDS):
                await inventory.refresh()
        except TrancheError as error:
            return error
        except TimeoutError:
            return HardwareError(f"the driver or the kubelet did not answer within {_SLOW_LOOK_SECONDS:g} s")
        return None

    async def _report(self, node: KubeNode, decision: NodeDecision) -> None:
        """Report by an event, then by the condition: if killed in between, the event comes twice rather than never."""
        present = node.condition(CONDITION_TYPE)
        if decision.report is None:
            if present is not None and present != NO_LAYOUT:
                await self._services.api.set_node_condition(node.name, NO_LAYOUT)
            return
        condition = decision.report.condition
        if present == condition:
            return
        if _is_news(present, condition):
            _log.info(
                "layout %s",
                decision.report.state,
                extra={
                    "layout": wanted_layout(node),
                    "reason": decision.report.reason,
                    "detail": decision.report.message,
                },
            )
            await self._record_event(node, decision.report.severity, condition)
        await self._services.api.set_node_condition(node.name, condition)

    async def _record_event(self, node: KubeNode, severity: KubeEventType, condition: NodeCondition) -> None:
        try:
            await self._services.api.create_node_event(node, severity, condition.reason, condition.message)
        except KubernetesUnavailable:
            raise
        except TrancheError as error:  # the condition says the same: no layout waits for the right to record events
            _log.warning(
                "cannot record an event", extra={"reason": error.reason, "error": str(error), "hint": error.hint}
            )

    async def _evict(self, pod: KubePod) -> None:
        try:
            answer = await self._services.api.evict_pod(pod.ref, pod.uid)
        except TrancheError as error:
            # The error concerns one pod, for instance under two budgets: evict the others all the same.
            self._eviction_answers[pod.ref] = str(error)
            return
        if answer.outcome is EvictionStatus.BLOCKED:
            self._eviction_answers[pod.ref] = f"its eviction was refused: {answer.message}"
        else:
            self._eviction_answers.pop(pod.ref, None)

    async def _draining(self, situation: NodeObservation) -> tuple[NodeObservation, TrancheError | None]:
        """Mark exactly the devices that the decision on this situation drains. Returns that situation; or the last one and why it
        cannot be read.

        A mark lasts until the layout is reached or given up. If one decision wants to keep a device and the next wants to take
        it, the device is first marked beside all others, and then the decision is made again, because a pod may just have been
        given it. The other marks go only once a decision takes nothing but what was marked before it.
        """
        inventory = self._services.inventory
        if situation.unseen is not None:  # nothing else is known, so the marks stay
            inventory.mark_draining(inventory.draining)
            return situation, None
        situation = self._sparing(situation, inventory.draining)
        decision = decide(situation)
        while self._outdated or not decision.draining <= inventory.draining:
            marked = inventory.draining
            inventory.mark_draining(marked | decision.draining)
            self._outdated = True
            try:
                snapshot = await inventory.refresh()
            except TrancheError as error:
                return situation, error
            self._outdated = False
            # Devices marked just now may have been given away until then, and in good faith if there were marks before.
            situation = self._sparing(replace(situation, view=snapshot.view), marked or inventory.draining)
            decision = decide(situation)
        if inventory.mark_draining(decision.draining):
            with suppress(TrancheError):  # the inventory tries again, and the marks stay until then
                await inventory.refresh()
        return situation, None

    def _sparing(self, situation: NodeObservation, marked: frozenset[str]) -> NodeObservation:
        wanted = wanted_layout(situation.node)
        return replace(situation, protected=self._newcomers.after(wanted, situation.view, marked))

    async def _work(self, situation: NodeObservation, decision: NodeDecision) -> bool:
        """Carry the work out, and remember a failure on the node. False when nothing was tried, because something moved."""
        layout = situation.layouts.select(wanted_layout(situation.node), situation.view.node)
        work = _CutWork(layout, situation, decision.draining)
        self._working_since = self._clock()
        try:
            await self._services.inventory.refresh()
            if decision.work is LayoutTask.CUT:
                await asyncio.to_thread(self._services.host.change, work.deciding, apart=True)
            else:
                await asyncio.to_thread(self._services.host.change, work.deciding_reboot, apart=True)
                await asyncio.to_thread(self._restart, self._settings.host_root)
        except TrancheError as error:
            if work.refused:
                _log.info("deciding on the layout again", extra={"reason": error.reason, "detail": error.message})
                return False
            _log.warning(
                "cannot apply the layout", extra={"reason": error.reason, "error": str(error), "hint": error.hint}
            )
            await self._remember(failed_attempt(situation, layout, error, changed_mode=work.changed_mode))
        except Exception as defect:
            # Otherwise the component would restart midway, with the operands paused and no report on the node.
            _log.exception("cannot apply the layout")
            failure = TrancheError(
                f"the agent hit a bug: {type(defect).__name__}: {defect}",
                hint="please report it with the agent's log",
            )
            await self._remember(failed_attempt(situation, layout, failure, changed_mode=work.changed_mode))
        finally:
            self._working_since = None
            self._outdated = True
        return True

    async def _remember(self, attempt: RetryState) -> None:
        await self._services.api.patch_node_metadata(
            self._services.node_name, annotations={ATTEMPT_ANNOTATION: attempt_text(attempt)}
        )

    async def _withdraw(self, me: str) -> None:
        """Withdraw the claim, so that the next manager need not wait. Failures are ignored, because the claim expires anyway."""
        api, node_name = self._services.api, self._services.node_name
        with suppress(TrancheError):
            await within(_WITHDRAWAL_SECONDS, api.patch_node_metadata(node_name, annotations=withdrawal(me)))


class _CutWork:
    """Decides under the decision lock, on a thread, and keeps what has to be known afterwards.

    `refused`: the decision itself was no, and nothing was tried. `changed_mode`: it should change the MIG mode of some GPU.
    """

    def __init__(self, layout: Layout, situation: NodeObservation, draining: frozenset[str]) -> None:
        self._layout = layout
        self._policy = situation.policy
        self._protected = situation.protected
        self._draining = draining
        self.refused = False
        self.changed_mode = False

    def deciding(self, view: NodeView) -> Plan:
        """The decision to cut; StateMoved when it would take what a pod might just be given."""
        self.refused = True
        plan = work_plan(view, self._layout, self._policy, self._protected)
        if draining_by(plan, view) - self._draining:
            raise StateMoved("the GPUs have changed since the layout was planned")
        return self._carried_out(plan)

    def deciding_reboot(self, view: NodeView) -> Plan:
        """The decision to request MIG modes that take effect with a restart."""
        self.refused = True
        return self._carried_out(reboot_plan(view, self._layout))

    def _carried_out(self, plan: Plan) -> Plan:
        self.refused = False
        self.changed_mode = any(step.changes_mode for step in plan.steps)
        return plan


def manager_name(path: Path) -> str:
    """This MIG manager's name, the same after a restart: in that file, which is made if it holds none.

    LedgerUnavailable when it cannot be read or written. Only one agent at a time has the state folder, so writes cannot collide.
    """
    try:
        name = read_state_file(path).decode(errors="replace").strip()
        if str(uuid.UUID(name)) == name:
            return name
    except (FileNotFoundError, ValueError):
        pass
    except OSError as error:
        raise LedgerUnavailable(f"cannot read {path}: {error.strerror}") from error
    name = str(uuid.uuid4())
    replace_state_file(path, f"{name}\n")
    return name


def _is_news(present: NodeCondition | None, condition: NodeCondition) -> bool:
    """Whether the report is news: its state or reason has changed, or a failure has another text."""
    if present is None or (present.status, present.reason) != (condition.status, condition.reason):
        return True
    return condition.status is ConditionStatus.FALSE and present.message != condition.message
