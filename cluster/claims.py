"""Claims of pods as objects, and questions about what the scheduler gave them.

Nodes on paper are API objects alone, without a kubelet: the scheduler binds pods to them, and nothing runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.client import ApiClient
from cluster.cluster import Cluster
from cluster.node import Node
from tranche.core.allocation import NodeView
from tranche.kubernetes.api.object_client import NodeSlice, decode_slice, encode_slice
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.devices.devices import devices_of
from tranche.kubernetes.devices.taints import TaintFacts, kept_places, parse_kept, reasons_against, set_apart
from tranche.kubernetes.dra.pool import pool_contents, slice_writes

_API = "resource.k8s.io/v1"
DRIVER = "gpu.tranche.dev"
NODES = "/api/v1/nodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TOLERATE_ALL = [{"operator": "Exists"}]
"""For pods: nobody renews the lease of such a node, so it is tainted as unreachable after a while."""


def claim_template(
    name: str, namespace: str, *, device_class: str = "gpu.tranche.dev", requests: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A template of claims for one device of that class with so much of its capacities."""
    exactly: dict[str, Any] = {"deviceClassName": device_class}
    if requests:
        exactly["capacity"] = {"requests": dict(requests)}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": _API, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": {"spec": spec}}


def with_claim(pod: Mapping[str, Any], template: str) -> dict[str, Any]:
    """The pod with a claim made from that template, for its one container."""
    (container,) = pod["spec"]["containers"]
    resources = {**container.get("resources", {}), "claims": [{"name": "gpu"}]}
    spec = {
        **pod["spec"],
        "containers": [{**container, "resources": resources}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
    }
    return {**pod, "spec": spec}


def claims_in(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = cluster.api.get(f"/apis/{_API}/namespaces/{namespace}/resourceclaims")["items"]
    return items


def devices_given(claim: Mapping[str, Any]) -> list[str]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return [each["device"] for each in (allocation.get("devices") or {}).get("results") or ()]


def devices_published(cluster: Cluster, node: Node) -> dict[str, dict[str, Any]]:
    """The devices that the node's slices show, by name; those of all slices that the API server has now."""
    items = cluster.api.get(f"/apis/{_API}/resourceslices?fieldSelector=spec.nodeName={node.name}")["items"]
    return {device["name"]: device for each in items for device in each["spec"].get("devices") or ()}


def give_by_claims(cluster: Cluster, node: Node, mode: str | None) -> None:
    """Say how the node's GPUs are given away, by the label of the node; None takes the word back."""
    cluster.api.merge(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {"tranche.dev/mode": mode}}})


def add_paper_node(api: ApiClient, name: str, labels: Mapping[str, str] | None = None) -> str:
    """Make a node with room for many pods; its uid."""
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    made = api.request("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": meta})
    room = {"cpu": "10000", "memory": "10Ti", "pods": "10000"}
    ready = {"type": "Ready", "status": "True", "reason": "OnPaper", "message": "nothing runs here"}
    api.merge(f"{NODES}/{name}/status", {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}})
    return str(made["metadata"]["uid"])


def publish_on_paper(
    api: ApiClient, name: str, uid: str, view: NodeView, known: tuple[NodeSlice, ...] = (), keep: str = ""
) -> tuple[NodeSlice, ...]:
    """Write what a node of mode `mixed` shows whose GPUs are those, and which keeps those sizes; its slices after that."""
    devices = devices_of(view.node)
    reasons = reasons_against(devices, view, TaintFacts(NodeMode.MIXED))
    places = kept_places(devices, view, parse_kept(keep), reasons)
    devices, against = set_apart(devices, places, reasons)
    return write_slices(api, pool_contents(name, devices, view, against, known), known, (name, uid))[0]


def write_slices(
    api: ApiClient, contents: Sequence[NodeSlice], known: Sequence[NodeSlice], owner: tuple[str, str]
) -> tuple[tuple[NodeSlice, ...], int]:
    """Write what differs from the known slices of a node; its slices after that, and how many were written."""
    writes = slice_writes(contents, known, owner)
    made = {each.name: each for each in known}
    for each in writes.create:
        made[each.name] = decode_slice(api.request("POST", SLICES, encode_slice(each)))
    for each in writes.replace:
        made[each.name] = decode_slice(api.request("PUT", f"{SLICES}/{each.name}", encode_slice(each)))
    return tuple(made.values()), writes.count


def claim(name: str, requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests)}},
    }


def pod_with_claim(name: str, claim_name: str) -> dict[str, Any]:
    """A pod that asks for nothing but that claim."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "tolerations": TOLERATE_ALL,
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim_name}],
            "containers": [{"name": "main", "image": "localhost/none:1", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }
