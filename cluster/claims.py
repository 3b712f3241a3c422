"""Claims of pods as objects, and questions about what the scheduler gave them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.cluster import Cluster
from cluster.node import Node

_API = "resource.k8s.io/v1"
DRIVER = "gpu.tranche.dev"


def claim_template(
    name: str, namespace: str, *, device_class: str = "tranche", requests: Mapping[str, str] | None = None
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
