"""One kind of object on an API server: read, followed, and replaced only by a program that saw the latest version.

Such kinds are leases, small objects that programs share, and the ResourceSlices in which a node's driver publishes its devices.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.informer import ObjectSource, named


class _Versioned(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...


Item = TypeVar("Item", bound=_Versioned)


class ObjectClient(Generic[Item]):
    """The objects under `path`, of that `kind` in messages. Errors are those of `KubeClient`."""

    def __init__(
        self,
        connection: ApiConnection,
        kind: str,
        path: str,
        decode: Callable[[Json], Item],
        encode: Callable[[Item], Json],
    ) -> None:
        self._connection = connection
        self._kind = kind
        self._path = path
        self._decode = decode
        self._encode = encode

    async def get(self, name: str) -> Item | None:
        """The object now; None when there is none."""
        answer = await self._connection.ask(f"read {self._kind} {name}", "GET", f"{self._path}/{name}")
        return self._decoded(answer.unless(404))

    async def create(self, item: Item) -> Item | None:
        """Create it; None when one of that name exists."""
        answer = await self._connection.ask(f"create {self._kind} {item.name}", "POST", self._path, self._encode(item))
        return self._decoded(answer.unless(409))

    async def replace(self, item: Item) -> Item | None:
        """Replace the object at its own `version`; None when that is no longer the latest, or the object is gone."""
        path, what = f"{self._path}/{item.name}", f"update {self._kind} {item.name}"
        return self._decoded((await self._connection.ask(what, "PUT", path, self._encode(item))).unless(404, 409))

    async def delete(self, item: Item) -> bool:
        """Remove the object at its `version`, in any version if it has none; False when it has changed since. A missing one
        counts as removed.
        """
        at = {"preconditions": {"resourceVersion": item.version}}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **at} if item.version else None
        path, what = f"{self._path}/{item.name}", f"delete {self._kind} {item.name}"
        answer = await self._connection.ask(what, "DELETE", path, body)
        answer.unless(404, *((409,) if item.version else ()))
        return answer.status != 409

    def source(self, label: str, selector: Mapping[str, str]) -> ObjectSource[Item]:
        """Those that the selector picks; `label` names them in logs."""
        return ObjectSource(self._connection, label, self._path, selector, self._decode)

    def _decoded(self, found: Json | None) -> Item | None:
        return None if found is None else self._decode(found)


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


_PATH = "/apis/resource.k8s.io/v1/resourceslices"


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """A `resource.k8s.io/v1` ResourceSlice of one node.

    `count` is how many slices of that `generation` the `pool` has. `devices` and `counters` are as the API has them; a slice has
    one of the two. `owner_node` is the name and uid of the node whose deletion removes the slice. `version` comes from the API
    server. What a pool shall show has a name and its content alone.
    """

    name: str
    driver: str = ""
    pool: str = ""
    node: str = ""
    generation: int = 0
    count: int = 0
    devices: tuple[Json, ...] = ()
    counters: tuple[Json, ...] = ()
    owner_node: tuple[str, str] | None = None
    version: str = ""


class SliceClient(ObjectClient[NodeSlice]):
    """The slices of one node and driver."""

    def __init__(self, connection: ApiConnection, node: str, driver: str) -> None:
        super().__init__(connection, "ResourceSlice", _PATH, decode_slice, encode_slice)
        self._node = node
        self._driver = driver

    def watch(self) -> AsyncGenerator[tuple[NodeSlice, ...], None]:
        """The slices now, then after each change."""
        selector = {"fieldSelector": f"spec.nodeName={self._node},spec.driver={self._driver}"}
        return self.source(f"the ResourceSlices of node {self._node}", selector).snapshots()


def encode_slice(made: NodeSlice) -> Json:
    """The `resource.k8s.io/v1` object."""
    meta: dict[str, object] = {"name": made.name}
    if made.owner_node is not None:
        name, uid = made.owner_node
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}]
    if made.version:
        meta["resourceVersion"] = made.version
    pool = {"name": made.pool, "generation": made.generation, "resourceSliceCount": made.count}
    spec: dict[str, object] = {"driver": made.driver, "nodeName": made.node, "pool": pool}
    if made.counters:
        spec["sharedCounters"] = list(made.counters)
    else:
        spec["devices"] = list(made.devices)
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}


def decode_slice(raw: Json) -> NodeSlice:
    """A `resource.k8s.io/v1.ResourceSlice`."""
    meta, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    pool = spec.get("pool") or {}
    owner = next((each for each in meta.get("ownerReferences") or () if each.get("kind") == "Node"), None)
    return NodeSlice(
        name=meta.get("name", ""),
        driver=spec.get("driver") or "",
        pool=pool.get("name") or "",
        node=spec.get("nodeName") or "",
        generation=pool.get("generation") or 0,
        count=pool.get("resourceSliceCount") or 0,
        devices=tuple(spec.get("devices") or ()),
        counters=tuple(spec.get("sharedCounters") or ()),
        owner_node=(owner.get("name", ""), owner.get("uid", "")) if owner else None,
        version=meta.get("resourceVersion") or "",
    )
