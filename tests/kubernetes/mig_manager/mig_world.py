"""A node, its GPUs by the rules of the grid, its pods and operands: what the MIG manager's decisions meet in pure tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.grid_model import carry_out
from tests.strategies import gpu_on, holders_of, view_of
from tranche.core.allocation import Allocation, NodeView, Phase, Slice
from tranche.core.board import board_by_key
from tranche.core.errors import GpuBusy, HardwareError, TrancheError
from tranche.core.keeper import PodKeeper
from tranche.core.request import MigSlice, Request
from tranche.core.state import GpuState, MigMode
from tranche.kubernetes.api.objects import KubeNode, KubePod, PodRef
from tranche.kubernetes.mig_manager.decision import (
    LayoutTask,
    NodeDecision,
    NodeObservation,
    decide,
    draining_by,
    failed_attempt,
    reboot_plan,
    work_plan,
)
from tranche.kubernetes.mig_manager.drain import InUsePolicy
from tranche.kubernetes.mig_manager.layout_source import read_layouts
from tranche.kubernetes.mig_manager.operands import PAUSED
from tranche.kubernetes.mig_manager.state import ATTEMPT_ANNOTATION, LAYOUT_LABEL, Moment, attempt_text, wanted_layout
from tranche.planning.steps import ResetGpu, SetMigMode

OPERANDS = {
    "nvidia.com/gpu.deploy.device-plugin": "nvidia-device-plugin-daemonset",
    "nvidia.com/gpu.deploy.dcgm": "nvidia-dcgm",
}
CONFIG_MAP = "tranche-system/layouts"


class Killed(Exception):
    """The manager was killed at this point."""


def gpu(board: str, index: int = 0, *, mode: MigMode = MigMode.ENABLED) -> GpuState:
    """An empty GPU of that board."""
    found = board_by_key(board)
    assert found is not None
    return gpu_on(found, index, mode=mode)


@dataclass(slots=True)
class World:
    """Everything outside of the manager. `fails` makes every change of a GPU fail, `mode_fails` every change of MIG
    mode, `reboot_fails` the restart of the machine; `busy` lets the driver refuse because of a process that nobody saw.
    """

    view: NodeView
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    config_map: str | None = None
    policy: InUsePolicy = InUsePolicy.WAIT
    with_reboot: bool = False
    rivals: tuple[str, ...] = ()
    pods: dict[PodRef, KubePod] = field(default_factory=dict)
    held: dict[PodRef, Slice] = field(default_factory=dict)
    operand_pods: set[str] = field(default_factory=set)
    stubborn_operands: bool = False
    protected: set[PodRef] = field(default_factory=set)
    answers: dict[PodRef, str] = field(default_factory=dict)
    fails: bool = False
    busy: bool = False
    mode_fails: bool = False
    reboot_fails: bool = False
    boots: int = 0
    boot_ids: bool = True
    now: float = 1_000_000.0
    draining: frozenset[str] = frozenset()
    cuts: int = 0

    @property
    def node(self) -> KubeNode:
        """The node object."""
        return KubeNode("n", "u", dict(self.labels), dict(self.annotations), self.unschedulable)

    @property
    def situation(self) -> NodeObservation:
        """What the manager sees."""
        source = read_layouts(
            CONFIG_MAP,
            None if self.config_map is None else {"config.yaml": self.config_map},
        )
        apps = [
            KubePod(PodRef("gpu-operator", app), labels={"app": app}, owner_kind="DaemonSet")
            for app in sorted(self.operand_pods)
        ]
        return NodeObservation(
            self.node,
            source,
            self.view_with_pods,
            (*self.pods.values(), *apps),
            Moment(f"boot-{self.boots}" if self.boot_ids else "", self.now),
            self.policy,
            self.with_reboot,
            self.rivals,
            dict(self.answers),
            frozenset({"gpu-operator"}),
        )

    @property
    def view_with_pods(self) -> NodeView:
        """The view in which pods count."""
        held = tuple(
            Allocation(
                f"pod/{ref}",
                Request(MigSlice(grant.profile)),
                (grant,),
                Phase.ACTIVE,
                0.0,
                keeper=PodKeeper("", ref.namespace, ref.name if ref.namespace else ""),
            )
            for ref, grant in sorted(self.held.items())
        )
        return replace(self.view, allocations=(*self.view.allocations, *held))

    def wish(self, layout: str | None) -> None:
        """What an admin does."""
        self.labels.pop(LAYOUT_LABEL, None)
        if layout is not None:
            self.labels[LAYOUT_LABEL] = layout

    def start_pod(self, name: str, gpu_index: int, start: int, *, owner: str = "ReplicaSet") -> PodRef | None:
        """A pod on the free slice there, if there is one that is not draining."""
        gpu = self.view.node.by_index(gpu_index)
        instance = next((i for i in gpu.instances if i.placement.start == start), None)
        if instance is None or holders_of(self.view_with_pods, gpu.key(instance)):
            return None
        if any(device.uuid in self.draining for device in instance.compute_instances):
            return None
        ref = PodRef("default", name)
        self.pods[ref] = KubePod(ref, owner_kind=owner)
        self.held[ref] = Slice(gpu.uuid, instance.profile, instance.placement)
        return ref

    def end_pod(self, ref: PodRef) -> None:
        """The pod is gone."""
        self.pods.pop(ref, None)
        self.held.pop(ref, None)

    def time_passes(self, seconds: float) -> None:
        """Evicted pods end; operands follow their labels."""
        self.now += seconds
        for ref in [ref for ref, pod in self.pods.items() if pod.terminating]:
            self.end_pod(ref)
        for key, app in OPERANDS.items():
            if self.labels.get(key) == "true":
                self.operand_pods.add(app)
            elif self.labels.get(key) == PAUSED and not self.stubborn_operands:
                self.operand_pods.discard(app)

    def round(self, *, kill_after: int | None = None) -> NodeDecision:
        """One look and what follows from it; Killed after so many writes."""
        left = kill_after

        def boundary() -> None:
            nonlocal left
            if left is not None:
                if left == 0:
                    self.draining = frozenset()
                    raise Killed
                left -= 1

        situation = self.situation
        decision = decide(situation)
        self.draining = decision.draining
        boundary()
        for key, value in decision.labels.items():
            self._set(self.labels, key, value)
        for key, value in decision.annotations.items():
            self._set(self.annotations, key, value)
        boundary()
        if decision.unschedulable is not None:
            self.unschedulable = decision.unschedulable
        boundary()
        for ref in decision.evict:
            self._evict(ref)
        boundary()
        if decision.work is not LayoutTask.NONE:
            self._work(situation, decision, boundary)
        return decision

    def settle(self, *, rounds: int = 60, longest_wait: float = 400.0) -> NodeDecision:
        """Rounds until nothing but news could change anything; time passes as the decisions ask for."""
        for _ in range(rounds):
            before = (dict(self.labels), dict(self.annotations), self.unschedulable, self.view)
            decision = self.round()
            after = (dict(self.labels), dict(self.annotations), self.unschedulable, self.view)
            if decision.look_again is None and before == after:
                return decision
            self.time_passes(min(decision.look_again or 0.0, longest_wait) + 0.01)
        raise AssertionError(f"it does not settle: {decision}")

    @staticmethod
    def _set(target: dict[str, str], key: str, value: str | None) -> None:
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value

    def _evict(self, ref: PodRef) -> None:
        if ref in self.protected:
            self.answers[ref] = "its eviction was refused: a budget"
        elif ref in self.pods:
            self.pods[ref] = replace(self.pods[ref], terminating=True)

    def _work(self, situation: NodeObservation, decision: NodeDecision, boundary: object) -> None:
        assert callable(boundary)
        layout = situation.layouts.select(wanted_layout(situation.node), situation.view.node)
        changed_mode = False
        assert not self.operand_pods or not any(self.labels.get(key) == PAUSED for key in OPERANDS)
        try:
            view = self.view_with_pods
            if decision.work is LayoutTask.CUT:
                plan = work_plan(view, layout, self.policy)
                assert draining_by(plan, view) <= decision.draining, "a device is taken that pods may be given"
            else:
                plan = reboot_plan(view, layout)
            changed_mode = any(isinstance(step, SetMigMode | ResetGpu) for step in plan.steps)
            if self.fails or (self.mode_fails and changed_mode and decision.work is LayoutTask.CUT):
                raise HardwareError("the driver refuses")
            if self.busy:
                raise GpuBusy("a process has come")
            after = carry_out(view, plan)
            self.cuts += 1
            self.view = replace(self.view, node=after.node)
            boundary()
            if decision.work is LayoutTask.REBOOT and self.reboot_fails:
                raise HardwareError("cannot restart the machine")
            if decision.work is LayoutTask.REBOOT:
                self.boots += 1
                self.now = 20.0
                gpus = tuple(replace(gpu, mode=gpu.pending_mode, instances=()) for gpu in self.view.node)
                self.view = replace(self.view, node=replace(self.view.node, gpus=gpus))
        except TrancheError as error:
            boundary()
            attempt = failed_attempt(situation, layout, error, changed_mode=changed_mode)
            self.annotations[ATTEMPT_ANNOTATION] = attempt_text(attempt)


def a100s(count: int = 2, *, mode: MigMode = MigMode.ENABLED) -> NodeView:
    """Empty A100s."""
    return view_of(*(gpu("A100-40GB", index, mode=mode) for index in range(count)))


def cut(world: World, layout: str) -> None:
    """Bring the world's GPUs to a layout."""
    world.wish(layout)
    world.settle()


def profiles(world: World, index: int = 0) -> Sequence[str]:
    """The slices of a GPU, sorted."""
    return sorted(str(instance.profile) for instance in world.view.node.by_index(index).instances)
