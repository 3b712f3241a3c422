"""Reads a cluster's GPUs, with the rights of whoever asks."""

from __future__ import annotations

from tranche.core.errors import ClaimsUnavailable, KubernetesNotFound
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.reader import ClusterReader
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.fleet.devices import decode_pools
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import FleetPod, decode_fleet_claim, decode_fleet_node, decode_fleet_pod

_GROUP = "/apis/resource.k8s.io/v1"


async def read_fleet(connection: ApiConnection, namespace: str) -> Fleet:
    """Everything that the caller may read; of claims at least those of the namespace.

    Raises:
        ClaimsUnavailable: the cluster knows no resource claims.
        KubernetesUnavailable: the API server does not answer.
    """
    reader = ClusterReader(connection)
    selector = {"fieldSelector": f"spec.driver={DRIVER}"}
    slices = await reader.objects("what nodes offer", f"{_GROUP}/resourceslices", **selector)
    if slices is None and not reader.unread:
        raise ClaimsUnavailable(
            "this cluster has no dynamic resource allocation (resource.k8s.io/v1)",
            hint="it needs Kubernetes 1.36 or newer; doctor --cluster and kubectl show what its nodes have",
        )
    nodes = await reader.objects("nodes", "/api/v1/nodes")
    claims = await reader.objects("claims of all namespaces", f"{_GROUP}/resourceclaims")
    if claims is None:
        claims = await reader.objects(f"claims of {namespace}", f"{_GROUP}/namespaces/{namespace}/resourceclaims")
    return Fleet(
        nodes=tuple(sorted(map(decode_fleet_node, nodes or ()), key=lambda each: each.name)),
        pools=decode_pools(slices or ()),
        claims=tuple(map(decode_fleet_claim, claims or ())),
        unread=reader.unread,
    )


async def read_pod(connection: ApiConnection, namespace: str, name: str) -> FleetPod:
    """That pod.

    Raises:
        KubernetesNotFound: there is none.
    """
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    answer = await connection.ask(f"read pod {namespace}/{name}", "GET", path)
    if answer.status == 404:
        raise KubernetesNotFound(
            f"there is no pod '{name}' in namespace {namespace}", hint="name its namespace with -n"
        )
    return decode_fleet_pod(answer.accepted())
