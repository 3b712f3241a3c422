"""What a node's agent would do about the name of a layout, by the planning with which it decides itself. Pure.

It is of the moment of the view. When the label is set, the agent looks and decides anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from tranche.core.allocation import NodeView
from tranche.core.errors import GpuBusy
from tranche.core.layout import Layout
from tranche.core.state import GpuInstance, GpuState
from tranche.documents.blocks import Document
from tranche.documents.layout_change import counted
from tranche.documents.machine import gpu_document
from tranche.kubernetes.mig_manager.decision import work_plan
from tranche.kubernetes.mig_manager.drain import InUsePolicy
from tranche.planning.layouts.partial import view_after_blockers
from tranche.planning.layouts.reconfigure import plan_layout
from tranche.planning.occupancy.layout_occupancy import User
from tranche.planning.steps import Step
from tranche.planning.steps.plan import apply


@dataclass(frozen=True, slots=True)
class _GpuOutlook:
    """A GPU that the layout names: what is done at once, what when nothing is in the way any more, and what stays."""

    gpu: GpuState
    now: tuple[Step, ...]
    later: tuple[Step, ...]
    kept: tuple[GpuInstance, ...]
    blockers: tuple[User, ...]


@dataclass(frozen=True, slots=True)
class LayoutPreview:
    """`after` are the GPUs in the end, once all that is in the way has ended; none while another change is at work."""

    layout: str
    policy: InUsePolicy
    gpus: tuple[_GpuOutlook, ...]
    after: tuple[Document, ...]
    warnings: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def blockers(self) -> tuple[User, ...]:
        """Whoever has to end, or to be evicted, before all is as declared."""
        return tuple(user for each in self.gpus for user in each.blockers)

    @property
    def changing(self) -> bool:
        """Whether another change is at work, of which nobody knows here what it leaves."""
        return any(user.changing for user in self.blockers)

    @property
    def nothing_to_do(self) -> bool:
        """Whether the GPUs are as declared already."""
        return not self.blockers and not any(each.now or each.later for each in self.gpus)

    @property
    def said(self) -> tuple[str, ...]:
        """The whole of it in sentences, of which two that are alike mean the same."""
        if self.nothing_to_do:
            return (*_warned(self), f"Its GPUs have the layout {self.layout} already.")
        return (*_warned(self), *_taken(self), *_done(self), *_kept(self))


def foresee_layout(view: NodeView, layout: Layout, policy: InUsePolicy) -> LayoutPreview:
    """What the agent would do now; the errors of `plan_layout` where it cannot be."""
    decision = plan_layout(view, layout)
    ended = view_after_blockers(view, decision)
    last = plan_layout(ended, layout)
    try:
        now = work_plan(view, layout, policy)
    except GpuBusy:
        now = None
    kept = {change.gpu.uuid: change.cut.kept for change in last.changes}
    gpus = tuple(
        _GpuOutlook(
            change.gpu,
            () if now is None else now.steps_on(change.gpu.uuid),
            last.plan.steps_on(change.gpu.uuid),
            kept.get(change.gpu.uuid, ()),
            change.blockers,
        )
        for change in decision.changes
    )
    found = LayoutPreview(layout.name, policy, gpus, (), decision.warnings, decision.lost)
    if found.changing:
        return found
    expected = apply(last.plan, ended)
    after = tuple(gpu_document(expected, expected.node.gpu(each.gpu.uuid)) for each in gpus)
    return LayoutPreview(layout.name, policy, gpus, after, decision.warnings, decision.lost)


def _warned(outlook: LayoutPreview) -> list[str]:
    lost = [f"The driver cannot reach {each}, which stays as it is." for each in outlook.lost]
    return [*outlook.warnings, *lost]


def _taken(outlook: LayoutPreview) -> list[str]:
    if not outlook.blockers:
        return ["Nothing in use is in its way."]
    said = {
        InUsePolicy.WAIT: "This has to end first; the agent waits for it, and gives its place to nobody new:",
        InUsePolicy.REFUSE: "The agent refuses it while this is in use, and changes nothing:",
        InUsePolicy.DRAIN: "The agent cordons the node, evicts pods that got these by the device plugin, and waits for the rest:",
    }[outlook.policy]
    return [said, *(f"{user}." for user in outlook.blockers)]


def _done(outlook: LayoutPreview) -> list[str]:
    now = sum(len(each.now) for each in outlook.gpus)
    if not outlook.blockers:
        return [f"{each.gpu.label}: {'; '.join(map(str, each.now))}." for each in outlook.gpus if each.now]
    found = [f"At once on {each.gpu.label}: {'; '.join(map(str, each.now))}." for each in outlook.gpus if each.now]
    if not now and outlook.policy is not InUsePolicy.REFUSE:
        found.append("Nothing is done at once.")
    if outlook.changing:
        return [*found, "Another change is at work on its GPUs; what is to be done after it is not known."]
    for each in outlook.gpus:
        rest = [step for step in each.later if step not in each.now]
        if rest:
            found.append(f"When nothing is in the way, on {each.gpu.label}: {'; '.join(map(str, rest))}.")
    return found


def _kept(outlook: LayoutPreview) -> list[str]:
    if outlook.changing:
        return []
    kept = sum(len(each.kept) for each in outlook.gpus)
    return [f"Kept as they are, with their UUIDs: {counted(kept, 'slice')}." if kept else "No slice stays."]
