"""What viewers can do on a cluster's page: each with their own rights, as the API server judges them.

It uses the viewer's own account through their token, or the page's account for viewers whom a proxy names. The API server judges
each request by the rights of its account. The page's account may do more than most viewers, so it does nothing before the API
server has said, just then, that the viewer may do exactly that. A layout's plan includes what the node's agent would do: what it
takes from whom, and what stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from tranche.core.errors import KubernetesForbidden, KubernetesNotFound, TrancheError, UsageError
from tranche.dashboard.acting.forms import FormKeyStore, digest_of, moved_note, plan_form
from tranche.dashboard.cluster.authentication import KubeUser
from tranche.dashboard.cluster.kube_reviews import AccessReviewClient
from tranche.dashboard.cluster.node_layouts import LayoutPreview, outlook_view
from tranche.dashboard.cluster.snapshot import SeenNode
from tranche.dashboard.cluster.source import FleetReader
from tranche.dashboard.cluster.user_view import UserView
from tranche.dashboard.frame import DashboardPage
from tranche.documents.blocks import Document
from tranche.documents.markup import Element, element
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.objects import KubeEventType, KubeNode, KubePod, PodRef, RbacPermission
from tranche.kubernetes.fleet.objects import FleetClaim

LAYOUT_LABEL = "nvidia.com/mig.config"
_LONGEST_LABEL = 63
_KINDS = ("cordon", "uncordon", "layout", "release")
_NO_TOKEN = (
    "your proxy passes on no token, and this page needs one to act: "
    "open the page without the proxy, and sign in with a token"
)
_BY_OWN_RIGHTS = "Kubernetes applies your own permissions."
_BY_PAGES_ACCOUNT = (
    "You reached this page through a proxy. For each action, the page asks Kubernetes whether you may do it, and then acts with "
    "its own account. Your name is recorded."
)
_LONGEST_NAME = 900
"""Characters of a viewer's name in a header: the API server's audit log cuts a user agent at 1,024."""
_REASON = "DoneFromDashboard"

_log = logging.getLogger(__name__)


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
            raise UsageError("there is no action with that name")
        if action.kind == "layout" and not (
            layout.isascii() and layout.isalnum() and len(action.layout) <= _LONGEST_LABEL
        ):
            raise UsageError("give a layout's name: at most 63 letters, digits, '-', '_' and '.'")
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
            "layout": f"Apply layout {self.layout} to node {self.node}",
            "release": f"Release share {self.share} on node {self.node}",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The action in words, the rights that it needs, and its requests to the API server.

    A request is method, path, body and content type; `pods` are those that are deleted, with the uids that keep later pods of
    the same names out.
    """

    action: ClusterAction
    lines: tuple[str, ...]
    rights: tuple[RbacPermission, ...]
    requests: tuple[tuple[str, str, Mapping[str, Any], str], ...]
    pods: tuple[KubePod, ...] = ()

    @property
    def digest(self) -> str:
        """Changes whenever anything in the plan does."""
        return digest_of([self.action.fields, self.lines, self.requests])


def node_plan(action: ClusterAction, node: SeenNode) -> ClusterPlan:
    """What happens to the node; UsageError where there is nothing to do."""
    right = RbacPermission("patch", "nodes", name=node.name)
    path = f"/api/v1/nodes/{quote(node.name, safe='')}"
    if action.kind == "layout":
        now = node.standing.labels.get(LAYOUT_LABEL, "")
        if now == action.layout:
            raise UsageError(f"node {node.name} already has the label for that layout")
        told = (
            f"The label {LAYOUT_LABEL} of node {node.name} changes"
            + (f" from {now}" if now else "")
            + f" to {action.layout}.",
            "The node's agent then applies the layout. For slices in use, it follows its policy: wait, refuse or drain.",
        )
        body: Mapping[str, Any] = {"metadata": {"labels": {LAYOUT_LABEL: action.layout}}}
        return ClusterPlan(action, told, (right,), (("PATCH", path, body, "application/merge-patch+json"),))
    wanted = action.kind == "cordon"
    if node.standing.unschedulable is wanted:
        raise UsageError(f"node {node.name} is {'already' if wanted else 'not'} cordoned")
    said = "No new pods can be scheduled on node" if wanted else "New pods can be scheduled again on node"
    lines = (f"{said} {node.name}. Pods that run there continue.",)
    request = ("PATCH", path, {"spec": {"unschedulable": wanted or None}}, "application/merge-patch+json")
    return ClusterPlan(action, lines, (right,), (request,))


def holders_of(action: ClusterAction, node: SeenNode, claims: Sequence[FleetClaim]) -> list[tuple[str, str]]:
    """Namespace and name of each pod that has the share; UsageError where they are unknown, or no pod has it."""
    found: Document | None = next((each for each in node.overview["allocations"] if each["id"] == action.share), None)
    if found is None:
        raise UsageError(f"node {node.name} no longer has share {action.share}")
    keeper = found["keeper"]
    match keeper["kind"]:
        case "pod" | "placed-pod" if keeper["name"]:
            return [(keeper["namespace"], keeper["name"])]
        case "claim":
            claim = next((each for each in claims if each.uid == keeper["uid"]), None)
            if claim is None or not claim.pods:
                raise UsageError("no pod uses that claim now")
            return [(claim.namespace, name) for name in claim.pods]
        case "hidden":
            raise UsageError("the share belongs to a namespace that you have no permission to see")
        case _:
            raise UsageError("no pod holds the share: release it on the machine with tranche release")


def release_plan(action: ClusterAction, pods: Sequence[KubePod]) -> ClusterPlan:
    """What happens to the pods that have the share."""
    lines = tuple(
        f"Kubernetes deletes pod {each.ref} with its grace period. If a controller created the pod, it creates a replacement."
        for each in pods
    )
    rights = tuple(RbacPermission("delete", "pods", each.ref.namespace, each.ref.name) for each in pods)
    requests = tuple(
        (
            "DELETE",
            f"/api/v1/namespaces/{quote(each.ref.namespace, safe='')}/pods/{quote(each.ref.name, safe='')}",
            {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": each.uid}},
            "application/json",
        )
        for each in pods
    )
    return ClusterPlan(action, (*lines, "The share is released when the pod ends."), rights, requests, tuple(pods))


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
        aria_label="Apply a layout to the node",
    )
    cordon = element("a", f"{kind.capitalize()}: show the plan", href=ClusterAction(kind, node.name).address)
    return element("section", element("h2", "Act"), element("p", cordon), layout)


def share_act(node: str, allocation_id: str) -> Element:
    """The link to taking a share back."""
    action = ClusterAction("release", node, share=allocation_id)
    return element("p", element("a", f"Release it on node {node}: show the plan", href=action.address))


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
        return (), "The effect of the layout on the node is unknown." if layouts is None else layouts.unknown
    try:
        return layouts.notes, user_view.outlook(layouts, action.layout)
    except TrancheError as error:
        return (), f"The agent would do nothing: {error.message}. {error.hint}".strip()


class ClusterActionHandler:
    """Acts on `server`. Events are written by `events`, with the page's account.

    With `for_proxied`, viewers named by a proxy act with the server's own credentials; else they cannot act.
    """

    def __init__(
        self,
        server: ApiServer,
        reviews: AccessReviewClient,
        fleets: FleetReader,
        keys: FormKeyStore,
        events: KubeClient,
        *,
        for_proxied: bool,
    ) -> None:
        self._server = server
        self._reviews = reviews
        self._fleets = fleets
        self._keys = keys
        self._events = events
        self._for_proxied = for_proxied

    def account(self, viewer: KubeUser) -> ActingClient:
        """The account for the viewer's actions; UsageError where there is none."""
        if not viewer.token and not self._for_proxied:
            raise UsageError(_NO_TOKEN)
        if not viewer.token and len(quote(viewer.user)) > _LONGEST_NAME:
            raise UsageError("your name is too long for an audit log, so you cannot act here")
        return ActingClient(viewer, self._server, self._reviews)

    async def plan(self, viewer: KubeUser, action: ClusterAction, node: SeenNode) -> ClusterPlan:
        """What would be done now. `node` is as the viewer sees it. UsageError if it is impossible; errors of the API server."""
        account = self.account(viewer)
        if action.kind != "release":
            return node_plan(action, node)
        holders = holders_of(action, node, (await self._fleets.fleet()).claims)
        if why_not := await account.refuses([RbacPermission("get", "pods", *each) for each in holders]):
            raise UsageError(why_not.removesuffix("."))
        async with aclosing(account.connect()) as connection:
            pods = [await _pod(connection, *each) for each in holders]
        return release_plan(action, pods)

    def key(self, viewer: KubeUser, plan: ClusterPlan) -> str:
        """The key of a form that shows the viewer that plan."""
        return self._keys.key(_session(viewer), plan.action.address, plan.digest)

    def spend(self, viewer: KubeUser, plan: ClusterPlan, key: str) -> str:
        """Use up the key. Returns why it is invalid, or ""."""
        return self._keys.spend(key, _session(viewer), plan.action.address, plan.digest)

    async def act(self, viewer: KubeUser, plan: ClusterPlan) -> None:
        """Do it in the viewer's name. Passes on the API server's refusal; what was done before it still gets its events."""
        account, title = self.account(viewer), plan.action.title
        if why_not := await account.refuses(plan.rights):
            raise KubernetesForbidden(why_not.removesuffix("."))
        _log.info("begun from the page", extra={"action": title, "viewer": viewer.user, "groups": viewer.groups})
        done = 0
        try:
            async with aclosing(account.connect()) as connection:
                for method, path, body, content_type in plan.requests:
                    what = title[:1].lower() + title[1:]
                    answer = await connection.ask(what, method, path, body, content_type=content_type)
                    if not (method == "DELETE" and answer.status == 404):
                        answer.accepted()
                    done += 1
        finally:
            if done:
                await self._tell(account, plan, plan.pods[:done])
        _log.info("done from the page", extra={"action": title, "viewer": viewer.user})

    async def _tell(self, account: ActingClient, plan: ClusterPlan, pods: Sequence[KubePod]) -> None:
        message = f"{plan.action.title}: done by {account.done_by} from the dashboard"
        try:
            for pod in pods:
                await self._events.create_pod_event(pod, plan.action.node, KubeEventType.NORMAL, _REASON, message)
            if not plan.pods:
                await self._events.create_node_event(KubeNode(plan.action.node), KubeEventType.NORMAL, _REASON, message)
        except TrancheError as error:
            _log.warning(
                "the action was done, but its event could not be recorded",
                extra={"action": plan.action.title, "error": error.message},
            )


async def _pod(connection: ApiConnection, namespace: str, name: str) -> KubePod:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    try:
        raw = (await connection.ask(f"read pod {namespace}/{name}", "GET", path)).accepted()
    except KubernetesNotFound as error:
        raise UsageError(f"pod {namespace}/{name} is already gone") from error
    except KubernetesForbidden as error:
        raise UsageError(
            f"you have no permission to read pod {namespace}/{name}, so you cannot delete it from here"
        ) from error
    return KubePod(PodRef(namespace, name), str((raw.get("metadata") or {}).get("uid") or ""))


def _session(viewer: KubeUser) -> str:
    # A viewer whose groups have changed counts as someone else: forms shown before are no longer valid.
    token = hashlib.sha256(viewer.token.encode()).hexdigest()
    return json.dumps([viewer.user, viewer.uid, sorted(viewer.groups), token])


@dataclass(frozen=True, slots=True)
class ActingClient:
    """The account for one viewer's actions.

    With a token it is the viewer's own: the API server judges each of its requests, so the rights known here only serve for
    words. Else it is the page's own, which remembers no viewer's rights, and takes anything but a plain yes as a no.
    """

    viewer: KubeUser
    server: ApiServer
    reviews: AccessReviewClient

    @property
    def said(self) -> str:
        """Whose rights decide, in words for the viewer."""
        return _BY_OWN_RIGHTS if self.viewer.token else _BY_PAGES_ACCOUNT

    @property
    def done_by(self) -> str:
        """Who acts with this account, in the words of an event."""
        return self.viewer.user if self.viewer.token else f"{self.viewer.user} (named by a proxy)"

    async def lacks(self, rights: Sequence[RbacPermission]) -> str:
        """Which of these rights the viewer lacks, in words for the viewer; "" only if the viewer is known to have all."""
        if self.viewer.token:
            for each in rights:
                if not await self.reviews.may(self.viewer, each):
                    return f"You have no permission to {each}."
            return ""
        try:
            answers = await asyncio.gather(*(self.reviews.may_now(self.viewer, each) for each in rights))
        except TrancheError as error:
            return f"The server cannot check whether you may do this ({error.reason}), so it does nothing."
        lacking = (each for each, allowed in zip(rights, answers, strict=True) if not allowed)
        return next((f"You have no permission to {each}." for each in lacking), "")

    async def refuses(self, rights: Sequence[RbacPermission]) -> str:
        """Why requests that need these rights must not be sent now; "" where they may be."""
        return "" if self.viewer.token else await self.lacks(rights)

    def connect(self) -> ApiConnection:
        """A connection with that account. The caller closes it."""
        if token := self.viewer.token:
            return ApiConnection(replace(self.server, token=lambda: token))
        return ApiConnection(self.server, user_agent=f"tranche-dashboard (for {quote(self.viewer.user)})")
