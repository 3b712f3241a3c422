"""How a cluster gives shares on demand, as far as the caller can see: all commands and explanations ask here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.reader import ClusterReader
from tranche.kubernetes.backend_watch import ask_backend
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS, AllocationBackend, BackendFacts, backend_by_signs
from tranche.kubernetes.claims.vocabulary import PLACING_LABEL, SHARE_RESOURCE, DeviceClassName

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"


async def backend_in_force(connection: ApiConnection, namespace: str = "") -> AllocationBackend:
    """The backend by the API server's version and by what the caller may read of the administrator's setup.

    With a namespace, which must be the agents', it reads leases there alone.

    KubernetesUnavailable when the API server does not answer.
    """
    by_version = await ask_backend(connection)
    reader = ClusterReader(connection)
    found = await reader.object("the device class", f"{CLASSES}/{DeviceClassName.ANY}")
    classes = None if found is None and reader.unread else found is not None
    if classes or by_version not in BY_CLAIMS:
        return backend_by_signs(by_version, BackendFacts(classes))
    nodes = await reader.objects("nodes", "/api/v1/nodes")
    if any(handed_out(each) not in ("", "0") for each in nodes or ()):
        return backend_by_signs(by_version, BackendFacts(classes, handed=True))
    leases = await reader.objects("leases of GPU nodes", _leases(namespace), labelSelector=PLACING_LABEL)
    return backend_by_signs(by_version, BackendFacts(classes, told=bool(leases)))


def _leases(namespace: str) -> str:
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/coordination.k8s.io/v1{within}/leases"


def handed_out(node: Mapping[str, Any]) -> str:
    """The number of shares that a node offers to pods with chosen shares, "" for a node that never offered any."""
    return str(((node.get("status") or {}).get("capacity") or {}).get(SHARE_RESOURCE, ""))
