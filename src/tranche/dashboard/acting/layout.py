"""Cutting GPUs as a layout declares, as `tranche layout apply` does."""

from __future__ import annotations

from dataclasses import dataclass

from tranche.core.allocation import NodeView
from tranche.core.state import GpuState
from tranche.dashboard.acting.action import ActionPlan, ActionRef, Tell, digest_of, refuse_another
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents.layout_change import counted, decision_data, sum_up
from tranche.node.change import Change
from tranche.node.execution.hook_runner import HookRunner
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.state.session import StateFolder
from tranche.planning.layouts.named_layouts import generate_layouts
from tranche.planning.layouts.reconfigure import LayoutDecision, plan_layout
from tranche.planning.steps import Step
from tranche.planning.steps.plan import plan_to_dict, with_daemons


@dataclass(frozen=True, slots=True)
class LayoutAction:
    """Applies the layout of that name, one of those generated for the machine."""

    layout: str

    @property
    def label(self) -> ActionRef:
        """Which action it is."""
        return ActionRef("layout", "layout", self.layout, f"Apply the layout {self.layout}", "Apply the layout")

    def plan(self, seen: MachineSnapshot, places: StateFolder) -> ActionPlan:
        """What it would do."""
        view = seen.view
        decision = self._decided(view)
        labels = {gpu.uuid: gpu.label for gpu in view.node}
        steps = with_daemons(decision.plan, (), view).steps
        kept = sum(len(change.cut.kept) for change in decision.changes)
        facts = [f"Kept as they are, with their UUIDs: {counted(kept, 'slice')}."] if kept else []
        lost = [f"The driver cannot reach {each}, which stays as it is." for each in decision.lost]
        refused = "; ".join(str(each) for each in decision.blockers)
        return ActionPlan(
            tuple((labels[step.gpu_uuid], str(step)) for step in steps),
            (*facts, *decision.warnings, *lost),
            _digest(decision, view),
            f"tranche layout apply -c {self.layout}",
            refused,
        )

    def do(self, host: Host, plan: str, tell: Tell) -> str:
        """Carry out that plan."""

        def decide(view: NodeView) -> LayoutDecision:
            decision = self._decided(view)
            decision.refuse_if_blocked()
            refuse_another(plan, _digest(decision, view))
            return decision

        def progress(gpu: GpuState, step: Step) -> None:
            tell(f"{gpu.label}: {step}")

        decision = Change(host, HookRunner(), WaitLimit(wait=False), progress=progress).to_layout(decide)
        decision.refuse_if_lost()
        return f"The GPUs are as declared: {sum_up(decision)}."

    def _decided(self, view: NodeView) -> LayoutDecision:
        return plan_layout(view, generate_layouts(view.node).select(self.layout))


def _digest(decision: LayoutDecision, view: NodeView) -> str:
    blockers = [str(each) for each in decision.blockers]
    return digest_of([plan_to_dict(with_daemons(decision.plan, (), view)), decision_data(decision), blockers])
