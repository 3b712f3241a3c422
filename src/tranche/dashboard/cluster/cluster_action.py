"""The actions of a cluster's page, with their plans, pages, and requests to the API server, which judges them.

A layout's plan includes what the node's agent would do: what it takes from whom, and what stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from tranche.core.errors import TrancheError, UsageError
from tranche.dashboard.acting.forms import digest_of, moved_note, plan_form
from tranche.dashboard.cluster.kube_viewer import KubePermission
from tranche.dashboard.cluster.node_layouts import LayoutPreview, outlook_view
from tranche.dashboard.cluster.snapshot import SeenNode
from tranche.dashboard.cluster.user_view import UserView
from tranche.dashboard.frame import DashboardPage
from tranche.documents.blocks import Document
from tranche.documents.markup import Element, element
from tranche.kubernetes.api.objects import KubePod
from tranche.kubernetes.fleet.objects import FleetClaim

LAYOUT_LABEL = "nvidia.com/mig.config"
_LONGEST_LABEL = 63
_KINDS = ("cordon", "uncordon", "layout", "release")


@dataclass(frozen=True, slots=True)
class ClusterAction:
    """An action: `kind` with the node, and a layout's name or a share's id if it concerns one."""

    kind: str
    node: str
    layout: str = ""
    share: str = ""

    @classmethod
    def asked(cls, fields: Mapping[str, str]) -> ClusterAction:
        """The action in an address or a form; UsageError if there is none."""
        action = cls(*(fields.get(each, "").strip() for each in ("kind", "node", "layout", "share")))
        layout = action.layout.replace("-", "").replace("_", "").replace(".", "")
        if action.kind not in _KINDS or not action.node:
            raise UsageError("there is no such thing to do")
        if action.kind == "layout" and not (
            layout.isascii() and layout.isalnum() and len(action.layout) <= _LONGEST_LABEL
        ):
            raise UsageError("name a layout: letters, digits, '-', '_' and '.', 63 at most")
        return action

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields for an address or a form."""
        every = {"kind": self.kind, "node": self.node, "layout": self.layout, "share": self.share}
        return {name: value for name, value in every.items() if value}

    @property
    def address(self) -> str:
        """The address that shows its plan."""
        return f"/act?{urlencode(self.fields)}"

    @property
    def title(self) -> str:
        """What it does, in short."""
        return {
            "cordon": f"Cordon node {self.node}",
            "uncordon": f"Uncordon node {self.node}",
            "layout": f"Give node {self.node} the layout {self.layout}",
            "release": f"Take share {self.share} of node {self.node} back",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The action in words, the rights that it needs, and its requests to the API server.

    A request is method, path, body and content type; `pods` are those that are deleted, with the uids that keep later pods of
    the same names out.
    """

    action: ClusterAction
    lines: tuple[str, ...]
    rights: tuple[KubePermission, ...]
    requests: tuple[tuple[str, str, Mapping[str, Any], str], ...]
    pods: tuple[KubePod, ...] = ()

    @property
    def digest(self) -> str:
        """Changes whenever anything in the plan does."""
        return digest_of([self.action.fields, self.lines, self.requests])


def node_plan(action: ClusterAction, node: SeenNode) -> ClusterPlan:
    """What happens to the node; UsageError where there is nothing to do."""
    right = KubePermission("patch", "nodes", name=node.name)
    path = f"/api/v1/nodes/{quote(node.name, safe='')}"
    if action.kind == "layout":
        now = node.standing.labels.get(LAYOUT_LABEL, "")
        if now == action.layout:
            raise UsageError(f"node {node.name} has that layout's label already")
        told = (
            f"The label {LAYOUT_LABEL} of node {node.name} is set to {action.layout}"
            + (f"; it is {now} now." if now else "."),
            "Its agent then cuts the GPUs so. What it does about slices in use is its policy: wait, refuse or drain.",
        )
        body: Mapping[str, Any] = {"metadata": {"labels": {LAYOUT_LABEL: action.layout}}}
        return ClusterPlan(action, told, (right,), (("PATCH", path, body, "application/merge-patch+json"),))
    wanted = action.kind == "cordon"
    if node.standing.unschedulable is wanted:
        raise UsageError(f"node {node.name} is {'' if wanted else 'not '}cordoned already")
    said = "No new pods are put on node" if wanted else "Pods are put again on node"
    lines = (f"{said} {node.name}. What runs there goes on.",)
    request = ("PATCH", path, {"spec": {"unschedulable": wanted or None}}, "application/merge-patch+json")
    return ClusterPlan(action, lines, (right,), (request,))


def holders_of(action: ClusterAction, node: SeenNode, claims: Sequence[FleetClaim]) -> list[tuple[str, str]]:
    """Namespace and name of each pod that has the share; UsageError where they are unknown, or no pod has it."""
    found: Document | None = next((each for each in node.overview["allocations"] if each["id"] == action.share), None)
    if found is None:
        raise UsageError(f"node {node.name} has no share {action.share} any more")
    keeper = found["keeper"]
    match keeper["kind"]:
        case "pod" | "placed-pod" if keeper["name"]:
            return [(keeper["namespace"], keeper["name"])]
        case "claim":
            claim = next((each for each in claims if each.uid == keeper["uid"]), None)
            if claim is None or not claim.pods:
                raise UsageError("no pod has that claim now")
            return [(claim.namespace, name) for name in claim.pods]
        case "hidden":
            raise UsageError("it is of a namespace that you may not see")
        case _:
            raise UsageError("no pod has it: take it back on the machine, by tranche release")


def release_plan(action: ClusterAction, pods: Sequence[KubePod]) -> ClusterPlan:
    """What happens to the pods that have the share."""
    lines = tuple(
        f"Pod {each.ref} is deleted, with the time to end that it has. A controller that made it makes another."
        for each in pods
    )
    rights = tuple(KubePermission("delete", "pods", each.ref.namespace, each.ref.name) for each in pods)
    requests = tuple(
        (
            "DELETE",
            f"/api/v1/namespaces/{quote(each.ref.namespace, safe='')}/pods/{quote(each.ref.name, safe='')}",
            {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": each.uid}},
            "application/json",
        )
        for each in pods
    )
    return ClusterPlan(
        action, (*lines, "The share is given back when the pod has ended."), rights, requests, tuple(pods)
    )


def plan_page(plan: ClusterPlan, key: str, why_not: str, judged: str, *, moved: str = "") -> DashboardPage:
    """The plan, and with a key the form that carries out exactly that.

    `judged` says whose rights decide; `moved` says why an earlier form did nothing.
    """
    above = element(
        "div",
        moved_note(moved) if moved else None,
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


def layout_act(node: str, layout: str) -> Element:
    """The link to giving a node that layout."""
    action = ClusterAction("layout", node, layout=layout)
    return element("p", element("a", f"{action.title}: show the plan", href=action.address))


def _form(plan: ClusterPlan, key: str) -> Element:
    """Its button names the one pod that it deletes, or says how many."""
    verb = plan.action.title
    if plan.pods:
        verb = f"Delete {f'pod {plan.pods[0].ref}' if len(plan.pods) == 1 else f'{len(plan.pods)} pods'}"
    fields = {**plan.action.fields, "plan": plan.digest, "key": key}
    return plan_form("/act", fields, plan.action.title, verb, danger=bool(plan.pods))


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
