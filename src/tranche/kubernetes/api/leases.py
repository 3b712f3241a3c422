"""Leases of a namespace: small objects that programs share. Only a program that saw the latest version can replace one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.informer import named
from tranche.kubernetes.api.object_client import ObjectClient


@dataclass(frozen=True, slots=True)
class Lease:
    """A `coordination.k8s.io/v1` Lease.

    `holder` is its holderIdentity, `seconds` its leaseDurationSeconds. `renewed` is the API server's text of the last renewal:
    use it only to detect a change, since another machine's clock wrote it. `created` sorts by time. `owner_node` is the name and
    uid of the node whose deletion removes the lease. `version` and `created` come from the API server.
    """

    name: str
    holder: str = ""
    seconds: int = 60
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner_node: tuple[str, str] | None = None
    renewed: str = ""
    created: str = ""
    version: str = ""


class LeaseClient(ObjectClient[Lease]):
    """The leases of one namespace."""

    def __init__(self, connection: ApiConnection, namespace: str) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        super().__init__(connection, "lease", path, decode_lease, _encode_lease)

    async def create(self, item: Lease) -> Lease | None:
        """Create it, renewed now; None when one of that name exists."""
        return await super().create(self._renewed(item))

    async def replace(self, item: Lease, *, renew: bool = True) -> Lease | None:
        """Replace the lease at its own `version`, renewed now or as before; None as for all objects."""
        return await super().replace(self._renewed(item) if renew else item)

    async def delete_all(self, label: str) -> None:
        """Remove every lease that has the label, with any value."""
        answer = await self._connection.ask("delete leases", "DELETE", self._path, query={"labelSelector": label})
        answer.accepted()

    def watch(self, name: str) -> AsyncGenerator[Lease | None, None]:
        """The lease now, then after each change; None while there is none."""
        return self.source(f"lease {name}", named(name)).versions()

    def watch_all(self, label: str, value: str) -> AsyncGenerator[tuple[Lease, ...], None]:
        """The leases with that label now, then after each change."""
        return self.source(f"leases with {label}={value}", {"labelSelector": f"{label}={value}"}).snapshots()

    def _renewed(self, lease: Lease) -> Lease:
        return replace(lease, renewed=self._connection.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"))


def _encode_lease(lease: Lease) -> Json:
    owners = []
    if lease.owner_node is not None:
        name, uid = lease.owner_node
        owners.append({"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid})
    meta = {
        "name": lease.name,
        "labels": dict(lease.labels),
        "annotations": dict(lease.annotations),
        "ownerReferences": owners,
        **({"resourceVersion": lease.version} if lease.version else {}),
    }
    spec = {"holderIdentity": lease.holder, "leaseDurationSeconds": lease.seconds, "renewTime": lease.renewed}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


def decode_lease(raw: Json) -> Lease:
    """A `coordination.k8s.io/v1.Lease`."""
    meta, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    owner = next((each for each in meta.get("ownerReferences") or () if each.get("kind") == "Node"), None)
    return Lease(
        name=meta.get("name", ""),
        holder=spec.get("holderIdentity") or "",
        seconds=spec.get("leaseDurationSeconds") or 0,
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        owner_node=(owner.get("name", ""), owner.get("uid", "")) if owner else None,
        renewed=spec.get("renewTime") or "",
        created=meta.get("creationTimestamp") or "",
        version=meta.get("resourceVersion") or "",
    )
