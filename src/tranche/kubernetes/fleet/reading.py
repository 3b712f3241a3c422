"""Reads a cluster's GPUs with the caller's rights, and how the cluster gives shares on demand, as far as the caller can see."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tranche.core.errors import ClaimsUnavailable, KubernetesNotFound
from tranche.kubernetes.api.client import ClusterReader
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.backend_watch import ask_backend
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS, AllocationBackend
from tranche.kubernetes.claims.vocabulary import DRIVER, PLACING_LABEL, SHARE_RESOURCE, DeviceClassName
from tranche.kubernetes.fleet.devices import FleetSlice, decode_fleet_slice, pools_of
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import FleetPod, decode_fleet_claim, decode_fleet_node, decode_fleet_pod

_GROUP = "/apis/resource.k8s.io/v1"
CLASSES = f"{_GROUP}/deviceclasses"
_REFUSED = "FailedPrepareDynamicResources"
_NO_CLAIM = "FailedResourceClaimCreation"
_OF_CLAIM = re.compile(r"NodePrepareResources failed for ResourceClaim (\S+): (.+)", re.DOTALL)
_FORBIDDEN = re.compile(r'resourceclaims\.resource\.k8s\.io "[^"]*" is forbidden: (.+)', re.DOTALL)


async def read_slices(reader: ClusterReader) -> tuple[FleetSlice, ...] | None:
    """What nodes offer; None as for `ClusterReader.objects`."""
    query = {"fieldSelector": f"spec.driver={DRIVER}"}
    return await reader.decoded("ResourceSlices", f"{_GROUP}/resourceslices", decode_fleet_slice, **query)


async def read_fleet(connection: ApiConnection, namespace: str) -> Fleet:
    """Everything that the caller may read, including at least the namespace's claims.

    Raises:
        ClaimsUnavailable: the cluster knows no resource claims.
        KubernetesUnavailable: the API server does not answer.
    """
    reader = ClusterReader(connection)
    with _uncollected():
        slices = await read_slices(reader)
        if slices is None and not reader.unread:
            raise ClaimsUnavailable(
                "this cluster has no dynamic resource allocation (resource.k8s.io/v1)",
                hint="use Kubernetes 1.36 or newer; to see what its nodes have, run tranche doctor --cluster",
            )
        nodes = await reader.decoded("nodes", "/api/v1/nodes", decode_fleet_node)
        within = ""
        claims = await reader.decoded("claims in all namespaces", f"{_GROUP}/resourceclaims", decode_fleet_claim)
        if claims is None:
            within = namespace
            path = f"{_GROUP}/namespaces/{namespace}/resourceclaims"
            claims = await reader.decoded(f"claims in {namespace}", path, decode_fleet_claim)
        return Fleet(
            nodes=tuple(sorted(nodes or (), key=lambda each: each.name)),
            pools=pools_of(slices or ()),
            claims=claims or (),
            unread=reader.unread,
            # By a reader of its own: without them, an explanation is only poorer.
            classes=await ClusterReader(connection).names("device classes", CLASSES),
            within=within,
        )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Run without the collector of reference cycles: the objects read have none, and searching a thousand nodes' slices for
    cycles takes longer than reading them.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


async def read_pod(connection: ApiConnection, namespace: str, name: str) -> FleetPod:
    """That pod, with the reason why it gets no claim, or why its node refuses to prepare it.

    Raises:
        KubernetesNotFound: there is none.
    """
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    answer = await connection.ask(f"read pod {namespace}/{name}", "GET", path)
    if answer.status == 404:
        raise KubernetesNotFound(
            f"pod '{name}' not found in namespace {namespace}", hint="select its namespace with -n"
        )
    return await with_refusal(connection, decode_fleet_pod(answer.accepted()))


async def with_refusal(connection: ApiConnection, pod: FleetPod) -> FleetPod:
    """The pod with what the last event says of its claim or its devices."""
    no_claim = not pod.node and pod.phase == "Pending" and bool(pod.templates.keys() - pod.claims.keys())
    if not no_claim and (not pod.node or pod.prepared):
        return pod
    events = await ClusterReader(connection).objects(
        "events",
        f"/api/v1/namespaces/{pod.namespace}/events",
        fieldSelector=f"involvedObject.uid={pod.uid},reason={_NO_CLAIM if no_claim else _REFUSED}",
    )
    return replace(pod, refusal=None if events is None else _last_refusal(events))


def _last_refusal(events: Sequence[Mapping[str, Any]]) -> str:
    """The latest refusal, without the kubelet's prefix to a driver's message, or the claim's name before a quota's."""
    last = max(events, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""), default={})
    message = str(last.get("message") or "")
    if found := _FORBIDDEN.search(message):
        return found[1]
    return f"claim {found[1]}: {found[2]}" if (found := _OF_CLAIM.search(message)) else message


async def backend_in_force(connection: ApiConnection, namespace: str = "") -> AllocationBackend:
    """The backend by the API server's version and by what the caller may read of the administrator's setup.

    With a namespace, which must be the agents', it reads leases there alone.

    KubernetesUnavailable when the API server does not answer.
    """
    by_version = await ask_backend(connection)
    reader = ClusterReader(connection)
    found = await reader.object("the device class", f"{CLASSES}/{DeviceClassName.ANY}")
    classes = None if found is None and reader.unread else found is not None
    if classes:  # the chart creates them for claims alone
        return by_version if by_version in BY_CLAIMS else AllocationBackend.CLAIMS
    if by_version not in BY_CLAIMS:
        return by_version
    nodes = await reader.objects("nodes", "/api/v1/nodes")
    if any(handed_out(each) not in ("", "0") for each in nodes or ()):
        return AllocationBackend.GATES
    # Agents' reports outlive a change to claims, so without a look at the classes they show nothing.
    leases = await reader.objects("leases of GPU nodes", _leases(namespace), labelSelector=PLACING_LABEL)
    return AllocationBackend.GATES if leases and classes is False else by_version


def _leases(namespace: str) -> str:
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/coordination.k8s.io/v1{within}/leases"


def handed_out(node: Mapping[str, Any]) -> str:
    """The number of shares that a node offers to pods with chosen shares, "" for a node that never offered any."""
    return str(((node.get("status") or {}).get("capacity") or {}).get(SHARE_RESOURCE, ""))
