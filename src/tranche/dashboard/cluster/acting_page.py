"""An action's plan with the form that does it, what came of it, and the ways there from other pages."""

from __future__ import annotations

from tranche.dashboard.cluster.cluster_action import ClusterAction, ClusterPlan
from tranche.dashboard.cluster.snapshot import SeenNode
from tranche.dashboard.frame import DashboardPage
from tranche.documents.markup import Element, element


def plan_page(plan: ClusterPlan, key: str, why_not: str, judged: str, *, moved: str = "") -> DashboardPage:
    """What would be done, and with a key the form that does exactly that.

    `judged` says by whose rights, `moved` why an earlier form did nothing.
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
    """What can be done with a node."""
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
    """The way to taking a share back."""
    action = ClusterAction("release", node, share=allocation_id)
    return element("p", element("a", f"Take it back from node {node}: show the plan", href=action.address))


def _verb(plan: ClusterPlan) -> str:
    """What the button does: with the pods that it deletes, where they are few."""
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
