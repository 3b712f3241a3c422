"""Nodes that are API objects alone, without a kubelet: the scheduler binds pods to them, and nothing runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.client import ApiClient
from tranche.core.allocation import NodeView
from tranche.kubernetes.api.resource_slices import NodeSlice, decode_slice, encode_slice
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.devices.devices import devices_of
from tranche.kubernetes.devices.taints import TaintFacts, kept_places, parse_kept, reasons_against, set_apart
from tranche.kubernetes.dra.pool import pool_contents, slice_writes

NODES = "/api/v1/nodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TOLERATE_ALL = [{"operator": "Exists"}]
"""For pods: nobody renews the lease of such a node, so it is tainted as unreachable after a while."""


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
    writes = slice_writes(pool_contents(name, devices, view, against, known), known, (name, uid))
    made = {each.name: each for each in known}
    for each in writes.create:
        made[each.name] = decode_slice(api.request("POST", SLICES, encode_slice(each)))
    for each in writes.replace:
        made[each.name] = decode_slice(api.request("PUT", f"{SLICES}/{each.name}", encode_slice(each)))
    return tuple(made.values())


def claim(name: str, requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A resource claim."""
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
