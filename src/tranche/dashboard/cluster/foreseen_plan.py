"""The plan of setting a node's layout, with what its agent would do about it: what it takes from whom, and what stays."""

from __future__ import annotations

from dataclasses import replace

from tranche.core.errors import TrancheError
from tranche.dashboard.cluster.cluster_action import ClusterAction, ClusterPlan
from tranche.dashboard.cluster.layout_outlook import LayoutPreview
from tranche.dashboard.cluster.node_layouts_page import outlook_view
from tranche.dashboard.cluster.user_view import UserView
from tranche.dashboard.frame import DashboardPage
from tranche.documents.markup import element


def foreseen_plan(plan: ClusterPlan, user_view: UserView) -> ClusterPlan:
    """The plan with that in its lines, so that nothing is done once it is another; where it is not known, they say so."""
    if plan.action.kind != "layout":
        return plan
    notes, found = _foreseen(plan.action, user_view)
    told = (found,) if isinstance(found, str) else (*notes, *found.said)
    return replace(plan, lines=(*plan.lines, *told))


def with_outlook(page: DashboardPage, action: ClusterAction, user_view: UserView) -> DashboardPage:
    """The page of such a plan, with the GPUs before and after below it."""
    found = _foreseen(action, user_view)[1] if action.kind == "layout" else ""
    node = user_view.snapshot.nodes.get(action.node)
    if isinstance(found, str) or node is None:
        return page
    return replace(page, below=element("section", list(outlook_view(node, found, in_words=False))))


def _foreseen(action: ClusterAction, user_view: UserView) -> tuple[tuple[str, ...], LayoutPreview | str]:
    """What to know of it, and what it would do, or why that is not known."""
    layouts = user_view.layouts(action.node)
    if layouts is None or layouts.unknown:
        return (), "What it would do there is not known." if layouts is None else layouts.unknown
    try:
        return layouts.notes, user_view.outlook(layouts, action.layout)
    except TrancheError as error:
        return (), f"The agent would do nothing: {error.message}. {error.hint}".strip()
