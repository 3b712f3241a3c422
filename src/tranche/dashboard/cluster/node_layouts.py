"""The layouts that a node can have, as its agent reports, and what one would do there, with their page. Pure.

What the agent does not report is shown as unknown; nothing is made up. The outlook comes from the planning that the agent itself
uses, and holds for the moment of the view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tranche.core.allocation import NodeView
from tranche.core.errors import GpuBusy, TrancheError, UsageError
from tranche.core.layout import Layout
from tranche.core.state import GpuInstance, GpuState
from tranche.dashboard.cluster.node_page import layouts_address, not_of_now
from tranche.dashboard.cluster.redaction import redacted_text, redacted_view
from tranche.dashboard.cluster.snapshot import NameVisibility, SeenNode
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.layouts_page import before_and_after
from tranche.dashboard.parts import layout_choice, node_link, notes, table
from tranche.documents.blocks import Document
from tranche.documents.layout_change import counted
from tranche.documents.machine import gpu_document
from tranche.documents.markup import Child, Element, element
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.mig_manager.decision import work_plan
from tranche.kubernetes.mig_manager.drain import InUsePolicy
from tranche.kubernetes.mig_manager.state import REASON_LABEL, ReportReason
from tranche.kubernetes.telling.told_view import ViewReport
from tranche.planning.layouts.named_layouts import LayoutList
from tranche.planning.layouts.reconfigure import plan_layout, view_after_blockers
from tranche.planning.occupancy.layout_occupancy import User
from tranche.planning.steps import Step
from tranche.planning.steps.plan import apply

_NOT_TOLD = (
    "The effect of a layout is unknown: the node's agent reports no layouts, or reports them in an unknown format."
)
_UNREAD = "The report of the node's agent cannot be read."
_NOT_MANAGED = "The node's agent does not apply layouts: it runs without the MIG manager."
_TOO_MANY = "The node's agent has more layouts than fit in its report, so the effect of a layout is unknown."
_SHORT = "The full report was too long, so this one names only one process on each device."
_TURNS = "Nodes in this cluster take turns changing their layouts: the agent waits for its turn."
_RIVAL = "Another MIG manager runs on this node. While it runs, the agent changes nothing."
_ANEW = (
    "When the label is set, the agent checks the node and decides again. Pods that start earlier also block the layout."
)


@dataclass(frozen=True, slots=True)
class _GpuOutlook:
    """A GPU that the layout names: what is done at once, what is done once nothing is in the way, and what stays."""

    gpu: GpuState
    now: tuple[Step, ...]
    later: tuple[Step, ...]
    kept: tuple[GpuInstance, ...]
    blockers: tuple[User, ...]


@dataclass(frozen=True, slots=True)
class LayoutPreview:
    """`after` are the GPUs once all that is in the way has ended; empty while another change is at work."""

    layout: str
    policy: InUsePolicy
    gpus: tuple[_GpuOutlook, ...]
    after: tuple[Document, ...]
    warnings: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def blockers(self) -> tuple[User, ...]:
        """The users that must end, or be evicted, before everything is as declared."""
        return tuple(user for each in self.gpus for user in each.blockers)

    @property
    def changing(self) -> bool:
        """Whether another change, with an unknown result, is at work."""
        return any(user.changing for user in self.blockers)

    @property
    def nothing_to_do(self) -> bool:
        """Whether the GPUs are already as declared."""
        return not self.blockers and not any(each.now or each.later for each in self.gpus)

    @property
    def said(self) -> tuple[str, ...]:
        """All of it in sentences. Equal sentences mean equal outlooks."""
        if self.nothing_to_do:
            return (*_warned(self), f"Its GPUs already have the layout {self.layout}.")
        return (*_warned(self), *_taken(self), *_done(self), *_kept(self))


def foresee_layout(view: NodeView, layout: Layout, policy: InUsePolicy) -> LayoutPreview:
    """What the agent would do now; the errors of `plan_layout` where it is impossible."""
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
    lost = [f"The driver cannot reach {each}, so it stays unchanged." for each in outlook.lost]
    return [*outlook.warnings, *lost]


def _taken(outlook: LayoutPreview) -> list[str]:
    if not outlook.blockers:
        return ["Nothing in use blocks the layout."]
    said = {
        InUsePolicy.WAIT: "These must end first. The agent waits, and assigns their devices to no one else:",
        InUsePolicy.REFUSE: "The agent refuses the layout while these are in use, and changes nothing:",
        InUsePolicy.DRAIN: "The agent cordons the node, evicts pods that use the device plugin, and waits for the others:",
    }[outlook.policy]
    return [said, *(f"{user}." for user in outlook.blockers)]


def _done(outlook: LayoutPreview) -> list[str]:
    now = sum(len(each.now) for each in outlook.gpus)
    if not outlook.blockers:
        return [f"{each.gpu.label}: {'; '.join(map(str, each.now))}." for each in outlook.gpus if each.now]
    found = [f"Immediately on {each.gpu.label}: {'; '.join(map(str, each.now))}." for each in outlook.gpus if each.now]
    if not now and outlook.policy is not InUsePolicy.REFUSE:
        found.append("Nothing happens immediately.")
    if outlook.changing:
        return [*found, "Another change to its GPUs is in progress, so the remaining steps are unknown."]
    for each in outlook.gpus:
        rest = [step for step in each.later if step not in each.now]
        if rest:
            found.append(f"When nothing blocks the layout, on {each.gpu.label}: {'; '.join(map(str, rest))}.")
    return found


def _kept(outlook: LayoutPreview) -> list[str]:
    if outlook.changing:
        return []
    kept = sum(len(each.kept) for each in outlook.gpus)
    return [f"Kept, with the same UUIDs: {counted(kept, 'slice')}." if kept else "No slice is kept."]


@dataclass(frozen=True, slots=True)
class NodeLayoutView:
    """A node with its agent's report, None if unreadable, as a viewer with that sight may know it.

    `named` are the namespaces whose names are known. The viewer reads only those in sight.
    """

    node: SeenNode
    told: ViewReport | None
    sight: NameVisibility
    named: frozenset[str] = frozenset()

    @property
    def unknown(self) -> str:
        """Why the effect of a layout is unknown here; "" if it is known."""
        if self.told is None:
            return self.node.unknown or _UNREAD
        layouts = self.told.layouts
        if layouts is None or (layouts.managed and layouts.in_use not in tuple(InUsePolicy)):
            return _NOT_TOLD
        if not layouts.managed:
            return _NOT_MANAGED
        if layouts.offer is None:
            return _TOO_MANY
        if layouts.offer.broken:
            return redacted_text(f"Its layouts cannot be read: {layouts.offer.broken}.", self.sight, self.named)
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about the page."""
        return () if self.unknown or self.told is None else tuple(self._notes(self.told))

    @property
    def names(self) -> tuple[str, ...]:
        """The layouts that the node can have; none if unknown."""
        return () if self.unknown else self._offer.names(self._view.node)

    def outlook(self, name: str) -> LayoutPreview:
        """What that layout would do; TrancheError with words for the viewer if the layout or its effect is unknown."""
        if self.unknown or self.told is None or self.told.layouts is None:
            raise UsageError(self.unknown.rstrip("."))
        view = self._view
        try:
            layout = self._offer.select(name, view.node)
            return foresee_layout(view, layout, InUsePolicy(self.told.layouts.in_use))
        except TrancheError as error:
            raise UsageError(
                redacted_text(error.message, self.sight, self.named),
                hint=redacted_text(error.hint, self.sight, self.named),
            ) from error

    @property
    def _offer(self) -> LayoutList:
        found = None if self.told is None or self.told.layouts is None else self.told.layouts.offer
        return found or LayoutList()

    @property
    def _view(self) -> NodeView:
        """The view that the agent decides by: a GPU that is only marked for another layout is free for this one."""
        if self.told is None:
            raise UsageError(self.unknown)
        view = redacted_view(self.told.view, self.sight)
        return replace(view, changing=view.changing - self.told.marked)

    def _notes(self, told: ViewReport) -> Iterator[str]:
        if told.layouts is not None and told.layouts.heeds_mode and self.node.standing.mode != NodeMode.STATIC:
            mode = self.node.standing.mode or "unknown"
            yield f"Its mode is {mode}: the agent applies layouts only in mode {NodeMode.STATIC}. This preview is for that mode."
        if self.node.standing.labels.get(REASON_LABEL) == ReportReason.MANAGER_CONFLICT:
            yield _RIVAL
        if told.layouts is not None and told.layouts.turns:
            yield _TURNS
        if told.short:
            yield _SHORT
        yield _ANEW


def node_layouts_page(
    layouts: NodeLayoutView,
    chosen: str,
    outlook: LayoutPreview | None,
    trouble: str,
    act: Callable[[str, str], Element] | None = None,
) -> DashboardPage:
    """The choice of layouts, and what the chosen one would do, or why that is unknown. `act` gives the link to setting it."""
    node = layouts.node
    shown: list[Child] = [element("p", "On node ", node_link(node.name))]
    if layouts.told is not None:
        shown += notes(not_of_now(node))
    if layouts.unknown or trouble:
        shown += notes([layouts.unknown or trouble])
    elif outlook is None:
        shown.append(
            element(
                "p",
                "Choose a layout to see what it would keep, and which slices in use would block it. This changes nothing.",
            )
        )
    else:
        shown += notes(layouts.notes)
        shown += outlook_view(node, outlook)
        if act is not None and not outlook.nothing_to_do:
            shown.append(act(node.name, chosen))
    names = layouts.names
    return DashboardPage(
        f"Layouts of node {node.name}",
        element("div", shown),
        layout_choice(names, chosen, layouts_address(node.name)) if names else None,
    )


def outlook_view(node: SeenNode, outlook: LayoutPreview, *, in_words: bool = True) -> Iterator[Child]:
    """What it would do, in words and as bars, and what stays."""
    if in_words:
        yield element("ul", [element("li", each) for each in outlook.said])
    if outlook.after:
        yield element("h2", "Before and after")
        gpus = [each for each in node.overview["gpus"] if each["uuid"] in {one["uuid"] for one in outlook.after}]
        yield from before_and_after(gpus, outlook.after, node.overview["allocations"])
    if kept := list(_kept_slices(outlook)):
        yield table("What is kept", ("GPU", "Slice", "MIG devices"), kept, "")


def _kept_slices(outlook: LayoutPreview) -> Iterator[Sequence[Child | None]]:
    if outlook.changing:
        return
    for gpu in outlook.gpus:
        for each in gpu.kept:
            uuids = ", ".join(piece.uuid for piece in each.compute_instances)
            yield gpu.gpu.label, f"{each.profile} at {each.placement}", uuids
