"""The plan of setting a node's layout, with what its agent would do about it: what it takes from whom, and what stays."""

from __future__ import annotations

from dataclasses import replace

from tranche.core.errors import TrancheError
from tranche.dashboard.cluster.cluster_deed import ClusterDeed, ClusterPlan
from tranche.dashboard.cluster.layout_outlook import LayoutOutlook
from tranche.dashboard.cluster.node_layouts_page import outlook_view
from tranche.dashboard.cluster.viewpoint import Viewpoint
from tranche.dashboard.frame import DashboardPage
from tranche.documents.markup import element


def foreseen_plan(plan: ClusterPlan, viewpoint: Viewpoint) -> ClusterPlan:
    """The plan with that in its lines, so that nothing is done once it is another; where it is not known, they say so."""
    if plan.deed.kind != "layout":
        return plan
    notes, found = _foreseen(plan.deed, viewpoint)
    told = (found,) if isinstance(found, str) else (*notes, *found.said)
    return replace(plan, lines=(*plan.lines, *told))


def with_outlook(page: DashboardPage, deed: ClusterDeed, viewpoint: Viewpoint) -> DashboardPage:
    """The page of such a plan, with the GPUs before and after below it."""
    found = _foreseen(deed, viewpoint)[1] if deed.kind == "layout" else ""
    node = viewpoint.snapshot.nodes.get(deed.node)
    if isinstance(found, str) or node is None:
        return page
    return replace(page, below=element("section", list(outlook_view(node, found, in_words=False))))


def _foreseen(deed: ClusterDeed, viewpoint: Viewpoint) -> tuple[tuple[str, ...], LayoutOutlook | str]:
    """What to know of it, and what it would do, or why that is not known."""
    layouts = viewpoint.layouts(deed.node)
    if layouts is None or layouts.unknown:
        return (), "What it would do there is not known." if layouts is None else layouts.unknown
    try:
        return layouts.notes, viewpoint.outlook(layouts, deed.layout)
    except TrancheError as error:
        return (), f"The agent would do nothing: {error.message}. {error.hint}".strip()
