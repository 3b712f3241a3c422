"""What the agent asks an API server for on behalf of its node, and what the end of all agents takes."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeVar
from urllib.parse import urlencode

from tranche.core.errors import KubernetesForbidden, KubernetesNotFound
from tranche.kubernetes.api.connection import ApiConnection, ApiResponse
from tranche.kubernetes.api.decoding import (
    Json,
    decode_daemon_set,
    decode_node,
    decode_pod,
    encode_condition,
    encode_event,
    encode_eviction,
    part,
    raw_condition,
    timestamp,
)
from tranche.kubernetes.api.informer import ObjectSource, named
from tranche.kubernetes.api.objects import (
    DaemonSet,
    EvictionResult,
    EvictionStatus,
    KubeEventType,
    KubeNode,
    KubePod,
    NodeCondition,
    PodRef,
)

_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"


class KubeClient:
    """One API server, asked on behalf of one node.

    Each call raises KubernetesUnavailable when a retry may help; KubernetesForbidden, KubernetesNotFound or
    KubernetesRejected when it does not. The watches raise nothing: they last until their iterator is closed, and recover
    by themselves.
    """

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection
        self._warned: dict[str, str] = {}

    async def get_node(self, name: str) -> KubeNode:
        """The node as it is now."""
        return decode_node(await self._get_node(name))

    async def patch_node_metadata(
        self,
        name: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> KubeNode:
        """Set labels and annotations, or remove those whose value is None; others stay. Returns the node after it."""
        metadata = {key: dict(value) for key, value in (("labels", labels), ("annotations", annotations)) if value}
        raw = await self._patch(f"patch node {name}", _node_path(name), {"metadata": metadata}, _MERGE_PATCH)
        return decode_node(raw)

    async def set_unschedulable(self, name: str, unschedulable: bool) -> None:
        """Cordon or uncordon."""
        what = f"{'cordon' if unschedulable else 'uncordon'} node {name}"
        await self._patch(what, _node_path(name), {"spec": {"unschedulable": unschedulable or None}}, _MERGE_PATCH)

    async def set_node_condition(self, name: str, condition: NodeCondition) -> None:
        """Set one condition. Its transition time moves only with its status; an unchanged condition is not written."""
        raw = await self._get_node(name)
        before = raw_condition(raw, condition.type) or {}
        now = self._connection.now()
        same_status = before.get("status") == condition.status
        since = str(before.get("lastTransitionTime") or "") if same_status else ""
        wanted = encode_condition(condition, now=now, since=since or timestamp(now))
        if all(before.get(key) == wanted[key] for key in ("status", "reason", "message")):
            return
        what = f"set condition {condition.type} of node {name}"
        await self._patch(what, f"{_node_path(name)}/status", {"status": {"conditions": [wanted]}}, _STRATEGIC_PATCH)

    def watch_node(self, name: str) -> AsyncIterator[KubeNode | None]:
        """The node now, then after each change; None while no node has that name."""
        source = ObjectSource(self._connection, f"node {name}", "/api/v1/nodes", named(name), decode_node)
        return source.versions()

    def watch_config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, str] | None]:
        """The ConfigMap's texts now, then after each change; None while no ConfigMap has that name."""
        label, path = f"ConfigMap {namespace}/{name}", f"/api/v1/namespaces/{namespace}/configmaps"
        return ObjectSource(self._connection, label, path, named(name), lambda raw: raw.get("data") or {}).versions()

    async def create_node_event(self, node: KubeNode, severity: KubeEventType, reason: str, message: str) -> None:
        """Record an event about the node; a repeated one is counted instead of added. `reason` is one CamelCase word."""
        path, name, answer = await self._record(node.name, node, node.uid, severity, reason, message)
        if answer.unless(409) is not None:
            return
        what = f"record an event about node {node.name}"
        seen = (await self._connection.ask(what, "GET", f"{path}/{name}")).accepted()
        again = {"count": int(seen.get("count") or 1) + 1, "lastTimestamp": timestamp(self._connection.now())}
        await self._patch(what, f"{path}/{name}", again, _MERGE_PATCH)

    async def warn_of_node(self, node: KubeNode, reason: str, problem: str) -> None:
        """Record a warning about the node if its `problem` with that reason is a new one; "" is none."""
        if problem and problem != self._warned.get(reason):
            await self.create_node_event(node, KubeEventType.WARNING, reason, problem)
        self._warned[reason] = problem

    async def create_pod_event(
        self, pod: KubePod, node_name: str, severity: KubeEventType, reason: str, message: str
    ) -> None:
        """Record an event about a pod in its namespace, once for each message. `reason` is one CamelCase word."""
        _, _, answer = await self._record(node_name, pod.ref, pod.uid, severity, reason, message)
        answer.unless(409)

    async def _record(
        self, host: str, about: KubeNode | PodRef, uid: str, severity: KubeEventType, reason: str, message: str
    ) -> tuple[str, str, ApiResponse]:
        """Create an event of the agent on that host. Returns its collection, its name, which is the same for the same event, and
        the answer.
        """
        same = "\n".join((uid, severity, reason, message))
        name = f"{about.name}.{hashlib.sha256(same.encode()).hexdigest()[:16]}"
        uid = uid or ("" if isinstance(about, PodRef) else about.name)
        source = {"component": "tranche", "host": host}
        body = encode_event(name, about, uid, source, severity, reason, message, now=self._connection.now())
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        what = f"record an event about {f'pod {about}' if isinstance(about, PodRef) else f'node {about.name}'}"
        return path, name, await self._connection.ask(what, "POST", path, body)

    async def list_pods_on_node(self, name: str) -> tuple[KubePod, ...]:
        """All pods bound to the node, including finished ones."""
        return tuple((await self._pods_of(name).list()).items.values())

    def watch_pods_on_node(self, name: str) -> AsyncIterator[tuple[KubePod, ...]]:
        """The pods bound to the node now, then after each change."""
        return self._pods_of(name).snapshots()

    async def daemon_set(self, namespace: str, name: str) -> DaemonSet | None:
        """The DaemonSet now; None when none has that name."""
        answer = await self._connection.ask(f"read DaemonSet {namespace}/{name}", "GET", _daemon_set(namespace, name))
        raw = answer.unless(404)
        return None if raw is None else decode_daemon_set(raw)

    async def evict_pod(self, pod: PodRef, uid: str) -> EvictionResult:
        """Ask for the pod's eviction, which respects disruption budgets; KubernetesRejected when another pod has its name now."""
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        answer = await self._connection.ask(f"evict pod {pod}", "POST", path, encode_eviction(pod, uid))
        if answer.status == 404:
            return EvictionResult(EvictionStatus.GONE, answer.message)
        # A busy API server answers with the same status, but names no budget.
        if answer.status == 429 and "DisruptionBudget" in answer.causes:
            return EvictionResult(EvictionStatus.BLOCKED, answer.message)
        answer.accepted()
        return EvictionResult(EvictionStatus.ACCEPTED)

    async def _get_node(self, name: str) -> Json:
        return (await self._connection.ask(f"read node {name}", "GET", _node_path(name))).accepted()

    async def _patch(self, what: str, path: str, body: Json, content_type: str) -> Json:
        return (await self._connection.ask(what, "PATCH", path, body, content_type=content_type)).accepted()

    def _pods_of(self, node: str) -> ObjectSource[KubePod]:
        selector = {"fieldSelector": f"spec.nodeName={node}"}
        return ObjectSource(self._connection, f"the pods of node {node}", "/api/v1/pods", selector, decode_pod)


class ClusterClient(KubeClient):
    """Also what concerns more than one node, for the program that removes the agents."""

    async def daemon_sets(self) -> tuple[DaemonSet, ...]:
        """Every DaemonSet of the cluster."""
        found = listed(self._connection, "the DaemonSets", "/apis/apps/v1/daemonsets")
        return tuple([decode_daemon_set(raw) async for raw in found])

    async def delete_daemon_set(self, namespace: str, name: str) -> None:
        """Delete it, after its pods; does nothing when there is none."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        what = f"delete DaemonSet {namespace}/{name}"
        (await self._connection.ask(what, "DELETE", _daemon_set(namespace, name), options)).unless(404)

    async def nodes_of_pods(self, namespace: str, labels: Mapping[str, str]) -> Mapping[str, str]:
        """The node of each bound pod with these labels, by pod name."""
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in sorted(labels.items()))}
        path = f"/api/v1/namespaces/{namespace}/pods"
        answer = await self._connection.ask(f"list the pods in {namespace}", "GET", path, query=query)
        found = ((item["metadata"]["name"], item["spec"].get("nodeName")) for item in answer.accepted()["items"])
        return {pod: node for pod, node in found if node}

    async def nodes(self) -> AsyncIterator[KubeNode]:
        """Every node."""
        async for raw in listed(self._connection, "the nodes", "/api/v1/nodes"):
            yield decode_node(raw)

    async def remove_node_condition(self, name: str, type_: str) -> None:
        """Remove one condition from a node's status."""
        patch = {"status": {"conditions": [{"type": type_, "$patch": "delete"}]}}
        what = f"remove condition {type_} of node {name}"
        await self._patch(what, f"{_node_path(name)}/status", patch, _STRATEGIC_PATCH)


def _node_path(name: str) -> str:
    return f"/api/v1/nodes/{name}"


def _daemon_set(namespace: str, name: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"


_PIECE = "500"

Found = TypeVar("Found")


async def listed(connection: ApiConnection, what: str, path: str, **query: str) -> AsyncIterator[Json]:
    """Every object of a list, read piece by piece. Errors are those of `KubeClient`."""
    more: Json = {}
    while True:
        asked = {"limit": _PIECE, **query, **more}
        body = (await connection.ask(f"list {what}", "GET", path, query=asked)).accepted()
        for raw in body.get("items") or ():
            yield raw
        following = (body.get("metadata") or {}).get("continue")
        if not following:
            return
        more = {"continue": str(following)}


class ClusterReader:
    """Reads with the caller's rights. Records what is forbidden in `unread`, and reads it as empty."""

    def __init__(self, connection: ApiConnection) -> None:
        self.connection = connection
        self.unread: dict[str, str] = {}

    async def objects(self, what: str, path: str, **query: str) -> tuple[Json, ...] | None:
        """Every object of a list; None where the API server does not know the kind, or the caller may not read it."""
        return await self.decoded(what, path, lambda each: each, **query)

    async def decoded(
        self, what: str, path: str, decode: Callable[[Json], Found], **query: str
    ) -> tuple[Found, ...] | None:
        """The objects of a list, decoded and read piece by piece; None as for `objects`."""
        try:
            return tuple([decode(raw) async for raw in listed(self.connection, what, path, **query)])
        except KubernetesForbidden as error:
            self.unread[what] = error.message
            return None
        except KubernetesNotFound:
            return None

    async def names(self, what: str, path: str) -> frozenset[str] | None:
        """The names of the objects of a list; None as for `objects`."""
        found = await self.decoded(what, path, lambda raw: str(part(raw, "metadata").get("name") or ""))
        return None if found is None else frozenset(found)

    async def object(self, what: str, path: str) -> Json | None:
        """One object; None where there is none, or the caller may not read it."""
        answer = await self.connection.ask(f"read {what}", "GET", path)
        try:
            return answer.unless(404)
        except KubernetesForbidden as error:
            self.unread[what] = error.message
            return None

    async def pods_of(self, what: str, namespace: str, selector: Mapping[str, str]) -> tuple[Json, ...]:
        """The pods with these labels; none where the caller may not read them."""
        labels = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        path = f"/api/v1/namespaces/{namespace}/pods"
        return await self.objects(what, path, labelSelector=labels) or ()

    async def text(self, what: str, path: str, **query: str) -> str | None:
        """A page that is no object, such as a log; None where it is not available."""
        return await self.connection.text(f"read {what}", f"{path}?{urlencode(query)}" if query else path)
