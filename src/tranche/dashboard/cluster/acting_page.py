"""An action's plan with the form that carries it out, its outcome, and the links to it from other pages.

A layout's plan includes what the node's agent would do: what it takes from whom, and what stays.
"""

from __future__ import annotations

from dataclasses import replace

from tranche.core.errors import TrancheError
from tranche.dashboard.cluster.cluster_action import ClusterAction, ClusterPlan
from tranche.dashboard.cluster.node_layouts import LayoutPreview
from tranche.dashboard.cluster.node_layouts_page import outlook_view
from tranche.dashboard.cluster.snapshot import SeenNode
from tranche.dashboard.cluster.user_view import UserView
from tranche.dashboard.frame import DashboardPage
from tranche.documents.markup import Element, element


def plan_page(plan: ClusterPlan, key: str, why_not: str, judged: str, *, moved: str = "") -> DashboardPage:
    """The plan, and with a key the form that carries out exactly that.

    `judged` says whose rights decide; `moved` says why an earlier form did nothing.
    """
    above = element(
        "div",
        element("p", f"Nothing was done: {moved}. This is how it is now.", class_="note", role="alert")
        if moved
        else None,
        element("ol", [element("li", each) for each in plan.lines]),
        element("p", why_not, class_="note") if why_not else _form(plan, key),
    )
    return DashboardPage(plan.action.title, element("p", judged), above)


def refused_page(title: str, said: str) -> DashboardPage:
    """Why nothing is done."""
    return DashboardPage(title, element("p", said, class_="note", role="alert"))


def node_acts(node: SeenNode) -> Element:
    """The actions on a node."""
    kind = "uncordon" if node.standing.unschedulable else "cordon"
    layout = element(
        "form",
        element("input", type="hidden", name="kind", value="layout"),
        element("input", type="hidden", name="node", value=node.name),
        element("label", "Layout ", element("input", name="layout", id="layout", required=True, autocomplete="off")),
        element("button", "Show the plan"),
        action="/act",
        method="get",
        aria_label="Give the node a layout",
    )
    cordon = element("a", f"{kind.capitalize()}: show the plan", href=ClusterAction(kind, node.name).address)
    return element("section", element("h2", "Act"), element("p", cordon), layout)


def share_act(node: str, allocation_id: str) -> Element:
    """The link to taking a share back."""
    action = ClusterAction("release", node, share=allocation_id)
    return element("p", element("a", f"Take it back from node {node}: show the plan", href=action.address))


def _verb(plan: ClusterPlan) -> str:
    """What the button does. Names the one pod that it deletes, or says how many."""
    if not plan.pods:
        return plan.action.title
    named = f"pod {plan.pods[0].namespace}/{plan.pods[0].name}" if len(plan.pods) == 1 else f"{len(plan.pods)} pods"
    return f"Delete {named}"


def _form(plan: ClusterPlan, key: str) -> Element:
    hidden = {**plan.action.fields, "plan": plan.digest, "key": key}
    return element(
        "form",
        [element("input", type="hidden", name=name, value=value) for name, value in hidden.items()],
        element("button", _verb(plan), class_="danger" if plan.pods else None),
        action="/act",
        method="post",
    )


def foreseen_plan(plan: ClusterPlan, user_view: UserView) -> ClusterPlan:
    """The plan with what its agent would do, or that this is unknown. When that changes, the confirmed plan no longer holds."""
    if plan.action.kind != "layout":
        return plan
    notes, found = _foreseen(plan.action, user_view)
    told = (found,) if isinstance(found, str) else (*notes, *found.said)
    return replace(plan, lines=(*plan.lines, *told))


def with_outlook(page: DashboardPage, action: ClusterAction, user_view: UserView) -> DashboardPage:
    """The page of a layout's plan, with the GPUs before and after below it."""
    found = _foreseen(action, user_view)[1] if action.kind == "layout" else ""
    node = user_view.snapshot.nodes.get(action.node)
    if isinstance(found, str) or node is None:
        return page
    return replace(page, below=element("section", list(outlook_view(node, found, in_words=False))))


def _foreseen(action: ClusterAction, user_view: UserView) -> tuple[tuple[str, ...], LayoutPreview | str]:
    """What to know about it, and what it would do, or why that is unknown."""
    layouts = user_view.layouts(action.node)
    if layouts is None or layouts.unknown:
        return (), "What it would do there is not known." if layouts is None else layouts.unknown
    try:
        return layouts.notes, user_view.outlook(layouts, action.layout)
    except TrancheError as error:
        return (), f"The agent would do nothing: {error.message}. {error.hint}".strip()
