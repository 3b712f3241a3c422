"""The actions of a cluster's page, in words, and the requests that they send to the API server, which judges them. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from tranche.core.errors import UsageError
from tranche.dashboard.cluster.kube_viewer import KubePermission
from tranche.dashboard.cluster.snapshot import SeenNode
from tranche.documents.blocks import Document
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
class PodIdentity:
    """A pod as it is now. The uid keeps a later pod of the same name out."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The action in words, the rights that it needs, and its requests to the API server.

    A request is method, path, body and content type; `pods` are those that are deleted.
    """

    action: ClusterAction
    lines: tuple[str, ...]
    rights: tuple[KubePermission, ...]
    requests: tuple[tuple[str, str, Mapping[str, Any], str], ...]
    pods: tuple[PodIdentity, ...] = field(default=())

    @property
    def digest(self) -> str:
        """Two plans with the same digest are the same plan."""
        whole = json.dumps([self.action.fields, self.lines, self.requests], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()


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


def release_plan(action: ClusterAction, pods: Sequence[PodIdentity]) -> ClusterPlan:
    """What happens to the pods that have the share."""
    lines = tuple(
        f"Pod {each.namespace}/{each.name} is deleted, with the time to end that it has. A controller that made it makes another."
        for each in pods
    )
    rights = tuple(KubePermission("delete", "pods", each.namespace, each.name) for each in pods)
    requests = tuple(
        (
            "DELETE",
            f"/api/v1/namespaces/{quote(each.namespace, safe='')}/pods/{quote(each.name, safe='')}",
            {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": each.uid}},
            "application/json",
        )
        for each in pods
    )
    return ClusterPlan(
        action, (*lines, "The share is given back when the pod has ended."), rights, requests, tuple(pods)
    )
