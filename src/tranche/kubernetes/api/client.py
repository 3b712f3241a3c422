"""`KubeApi` on a real API server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import (
    Json,
    decode_config_map,
    decode_node,
    decode_pod,
    encode_condition,
    encode_node_event,
    raw_condition,
    timestamp,
)
from tranche.kubernetes.api.informer import Backoff, Happening, Informer, Objects, WatchEvent
from tranche.kubernetes.api.objects import (
    ConfigMap,
    Eviction,
    EvictionOutcome,
    KubeNode,
    KubePod,
    NodeCondition,
    PodRef,
    Severity,
)

Item = TypeVar("Item")

_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_WATCH_SECONDS = 300


class KubeClient:
    """One API server's `KubeApi`. `random` gives numbers from 0 to 1; `now` gives the time in UTC."""

    def __init__(
        self,
        connection: ApiConnection,
        *,
        now: Callable[[], datetime],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connection = connection
        self._now = now
        self._random = random
        self._sleep = sleep

    async def get_node(self, name: str) -> KubeNode:
        """The node now."""
        return decode_node(await self._get_node(name))

    async def patch_node_metadata(
        self,
        name: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> KubeNode:
        """Set labels and annotations, or remove those whose value is None. The node after it."""
        metadata = {key: dict(value) for key, value in (("labels", labels), ("annotations", annotations)) if value}
        raw = await self._patch(f"patch node {name}", _node_path(name), {"metadata": metadata}, _MERGE_PATCH)
        return decode_node(raw)

    async def set_unschedulable(self, name: str, unschedulable: bool) -> None:
        """Cordon or uncordon."""
        what = f"{'cordon' if unschedulable else 'uncordon'} node {name}"
        await self._patch(what, _node_path(name), {"spec": {"unschedulable": unschedulable or None}}, _MERGE_PATCH)

    async def set_node_condition(self, name: str, condition: NodeCondition) -> None:
        """Set one condition, unless it is so already."""
        raw = await self._get_node(name)
        before = raw_condition(raw, condition.type) or {}
        now = self._now()
        same_status = before.get("status") == condition.status
        since = str(before.get("lastTransitionTime") or "") if same_status else ""
        wanted = encode_condition(condition, now=now, since=since or timestamp(now))
        if all(before.get(key) == wanted[key] for key in ("status", "reason", "message")):
            return
        what = f"set condition {condition.type} of node {name}"
        await self._patch(what, f"{_node_path(name)}/status", {"status": {"conditions": [wanted]}}, _STRATEGIC_PATCH)

    def watch_node(self, name: str) -> AsyncIterator[KubeNode | None]:
        """The node now, then after each change; None while there is none."""
        return self._watch_one(_NamedObject(self._connection, f"node {name}", "/api/v1/nodes", name, decode_node))

    def watch_config_map(self, namespace: str, name: str) -> AsyncIterator[ConfigMap | None]:
        """The ConfigMap now, then after each change; None while there is none."""
        label, path = f"ConfigMap {namespace}/{name}", _config_maps_path(namespace)
        return self._watch_one(_NamedObject(self._connection, label, path, name, decode_config_map))

    async def create_node_event(self, node: KubeNode, severity: Severity, reason: str, message: str) -> None:
        """Record an event about the node; the same again counts up."""
        same = "\n".join((node.uid, severity, reason, message))
        name = f"{node.name}.{hashlib.sha256(same.encode()).hexdigest()[:16]}"
        path = "/api/v1/namespaces/default/events"
        body = encode_node_event(name, node, severity, reason, message, now=self._now())
        what = f"record an event about node {node.name}"
        answer = await self._connection.ask(what, "POST", path, body)
        if answer.status != 409:
            answer.accepted()
            return
        seen = (await self._connection.ask(what, "GET", f"{path}/{name}")).accepted()
        again = {"count": int(seen.get("count") or 1) + 1, "lastTimestamp": timestamp(self._now())}
        await self._patch(what, f"{path}/{name}", again, _MERGE_PATCH)

    async def list_pods_on_node(self, name: str) -> tuple[KubePod, ...]:
        """Every pod that is bound to the node."""
        query = {"fieldSelector": f"spec.nodeName={name}"}
        answer = await self._connection.ask(f"list the pods of node {name}", "GET", "/api/v1/pods", query=query)
        return tuple(decode_pod(item) for item in answer.accepted().get("items") or ())

    async def evict_pod(self, pod: PodRef, uid: str) -> Eviction:
        """Ask for that pod's eviction."""
        meta = {"namespace": pod.namespace, "name": pod.name}
        options = {"preconditions": {"uid": uid}}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        answer = await self._connection.ask(f"evict pod {pod}", "POST", path, body)
        if answer.status == 404:
            return Eviction(EvictionOutcome.GONE, answer.message)
        # The same status also stands for a busy API server, which names no budget.
        if answer.status == 429 and "DisruptionBudget" in answer.causes:
            return Eviction(EvictionOutcome.BLOCKED, answer.message)
        answer.accepted()
        return Eviction(EvictionOutcome.ACCEPTED)

    async def _get_node(self, name: str) -> Json:
        return (await self._connection.ask(f"read node {name}", "GET", _node_path(name))).accepted()

    async def _patch(self, what: str, path: str, body: Json, content_type: str) -> Json:
        return (await self._connection.ask(what, "PATCH", path, body, content_type=content_type)).accepted()

    async def _watch_one(self, source: _NamedObject[Item]) -> AsyncIterator[Item | None]:
        informer = Informer(source, Backoff(self._random), sleep=self._sleep)
        async with aclosing(informer.snapshots()) as snapshots:
            async for items in snapshots:
                yield next(iter(items.values()), None)


@dataclass(frozen=True, slots=True)
class _NamedObject(Generic[Item]):
    """The collection, of one or none, of the objects under `path` with that name."""

    connection: ApiConnection
    label: str
    path: str
    name: str
    decode: Callable[[Json], Item]

    async def list(self) -> Objects[Item]:
        answer = await self.connection.ask(f"read {self.label}", "GET", self.path, query=self._selector)
        body = answer.accepted()
        items = {str(self.name): self.decode(raw) for raw in body.get("items") or ()}
        return Objects(_version(body), items)

    async def watch(self, resource_version: str) -> AsyncGenerator[WatchEvent[Item], None]:
        query = {
            **self._selector,
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        async with aclosing(self.connection.follow(f"watch {self.label}", self.path, query)) as lines:
            async for line in lines:
                yield self._event(line)

    @property
    def _selector(self) -> Mapping[str, str]:
        return {"fieldSelector": f"metadata.name={self.name}"}

    def _event(self, line: Mapping[str, Any]) -> WatchEvent[Item]:
        happening = Happening(line.get("type", Happening.OPENED))
        raw = line.get("object") or {}
        about_object = happening in (Happening.ADDED, Happening.MODIFIED)
        return WatchEvent(happening, _version(raw), self.name, self.decode(raw) if about_object else None)


def _version(raw: Json) -> str:
    return str((raw.get("metadata") or {}).get("resourceVersion", ""))


def _node_path(name: str) -> str:
    return f"/api/v1/nodes/{name}"


def _config_maps_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"
