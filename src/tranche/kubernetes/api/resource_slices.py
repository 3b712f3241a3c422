"""The ResourceSlices in which one node's driver publishes its devices."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.object_client import ObjectClient

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
