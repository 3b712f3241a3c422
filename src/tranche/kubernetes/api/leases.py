"""Leases of a namespace: small objects that programs share. Only a program that saw the latest version can replace one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.informer import ObjectSource, named


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


class LeaseClient:
    """The leases of one namespace. Errors are those of `KubeClient`."""

    def __init__(self, connection: ApiConnection, namespace: str) -> None:
        self._connection = connection
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    async def get(self, name: str) -> Lease | None:
        """The lease now; None when there is none."""
        answer = await self._connection.ask(f"read lease {name}", "GET", f"{self._path}/{name}")
        return None if answer.status == 404 else decode_lease(answer.accepted())

    async def create(self, lease: Lease) -> Lease | None:
        """Create it, renewed now; None when one of that name exists."""
        answer = await self._connection.ask(f"create lease {lease.name}", "POST", self._path, self._encode(lease))
        return None if answer.status == 409 else decode_lease(answer.accepted())

    async def replace(self, lease: Lease, *, renew: bool = True) -> Lease | None:
        """Replace the lease at its own `version`, renewed now or as before.

        None when that is no longer the latest version, or the lease is gone.
        """
        path = f"{self._path}/{lease.name}"
        answer = await self._connection.ask(f"update lease {lease.name}", "PUT", path, self._encode(lease, renew=renew))
        return None if answer.status in (404, 409) else decode_lease(answer.accepted())

    async def delete(self, lease: Lease) -> bool:
        """Remove the lease at its `version`; False when it has changed since. A missing lease counts as removed."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": lease.version}}
        path = f"{self._path}/{lease.name}"
        answer = await self._connection.ask(f"delete lease {lease.name}", "DELETE", path, body)
        if answer.status not in (404, 409):
            answer.accepted()
        return answer.status != 409

    def watch(self, name: str) -> AsyncGenerator[Lease | None, None]:
        """The lease now, then after each change; None while there is none."""
        return self._source(f"lease {name}", named(name)).versions()

    def watch_all(self, label: str, value: str) -> AsyncGenerator[tuple[Lease, ...], None]:
        """The leases with that label now, then after each change."""
        source = self._source(f"leases with {label}={value}", {"labelSelector": f"{label}={value}"})
        return source.snapshots()

    def _source(self, what: str, selector: Mapping[str, str]) -> ObjectSource[Lease]:
        return ObjectSource(self._connection, what, self._path, selector, decode_lease)

    def _encode(self, lease: Lease, *, renew: bool = True) -> Json:
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
        renewed = self._connection.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ") if renew else lease.renewed
        spec = {"holderIdentity": lease.holder, "leaseDurationSeconds": lease.seconds, "renewTime": renewed}
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
