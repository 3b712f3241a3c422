"""The layouts that a node can be given, as its agent tells, and what one would do there. Pure.

What the agent does not tell is said, and nothing is made up in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError, UsageError
from tranche.dashboard.cluster.layout_outlook import LayoutPreview, foresee_layout
from tranche.dashboard.cluster.redaction import redacted_text, redacted_view
from tranche.dashboard.cluster.snapshot import SeenNode
from tranche.dashboard.cluster.visibility import NameVisibility
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.mig_manager.drain import InUsePolicy
from tranche.kubernetes.mig_manager.state import REASON_LABEL, ReportReason
from tranche.kubernetes.telling.told_view import ViewReport
from tranche.planning.layouts.layout_offer import LayoutList

_NOT_TOLD = (
    "What a layout would do is not known: its agent tells nothing of layouts, or in words that are not known here."
)
_UNREAD = "What its agent tells cannot be read."
_NOT_MANAGED = "Its agent cuts no GPUs by layouts: it runs without the MIG manager."
_TOO_MANY = "Its agent has more layouts than it can tell, so what one would do is not known."
_SHORT = "There was too much to tell: of the processes on a device one alone is named."
_TURNS = "Nodes of this cluster change their layouts in turns: the agent waits for its own."
_RIVAL = "Another MIG manager is on this node: while it is, the agent changes nothing."
_ANEW = "The agent looks and decides anew when the label is set; pods that start until then are in the way, too."


@dataclass(frozen=True, slots=True)
class NodeLayoutView:
    """A node with what its agent told of it, None where nothing can be read; as the viewer of that sight may know it.

    `named` are the namespaces whose names are known, of which he is told those that he sees.
    """

    node: SeenNode
    told: ViewReport | None
    sight: NameVisibility
    named: frozenset[str] = frozenset()

    @property
    def unknown(self) -> str:
        """Why nobody can say here what a layout would do; "" where that can be said."""
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
        """What to know of what is shown."""
        return () if self.unknown or self.told is None else tuple(self._notes(self.told))

    @property
    def names(self) -> tuple[str, ...]:
        """The layouts that the node can have; none where that is not known."""
        return () if self.unknown else self._offer.names(self._view.node)

    def outlook(self, name: str) -> LayoutPreview:
        """What that layout would do; TrancheError with words for the viewer where there is no such layout, or nobody can say."""
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
        """What the agent decides by: a GPU that is only marked for another layout is free for this one."""
        if self.told is None:
            raise UsageError(self.unknown)
        view = redacted_view(self.told.view, self.sight)
        return replace(view, changing=view.changing - self.told.marked)

    def _notes(self, told: ViewReport) -> Iterator[str]:
        if told.layouts is not None and told.layouts.heeds_mode and self.node.standing.mode != NodeMode.STATIC:
            mode = self.node.standing.mode or "not one that is known"
            yield f"Its mode is {mode}: the agent heeds a layout only where it is {NodeMode.STATIC}. What follows is of then."
        if self.node.standing.labels.get(REASON_LABEL) == ReportReason.MANAGER_CONFLICT:
            yield _RIVAL
        if told.layouts is not None and told.layouts.turns:
            yield _TURNS
        if told.short:
            yield _SHORT
        yield _ANEW
