"""Calls that concern a whole cluster, not one node: the agents' DaemonSet, its pods, all nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tranche.core.errors import KubernetesNotFound
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import decode_node
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.api.reader import listed


@dataclass(frozen=True, slots=True)
class DaemonSet:
    """A DaemonSet: whether it is being deleted, its pods' labels, and their containers' arguments."""

    name: str
    deleting: bool = False
    selector: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    namespace: str = ""

    @property
    def runs_agents(self) -> bool:
        """Whether a container runs `tranche agent`."""
        return any(
            program.rpartition("/")[2] == "tranche" and command == "agent"
            for program, command in pairwise(self.arguments)
        )

    def has_option(self, name: str) -> bool:
        """Whether a container is started with that option, such as `--verbose` or `--layouts=sizes`."""
        return any(each.partition("=")[0] == name for each in self.arguments)


class ClusterClient:
    """A few calls that concern more than one node. Each raises the errors of `KubeClient`."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def daemon_set(self, namespace: str, name: str) -> DaemonSet | None:
        """The DaemonSet now; None when none has that name."""
        answer = await self._connection.ask(f"read DaemonSet {namespace}/{name}", "GET", _daemon_set(namespace, name))
        try:
            raw = answer.accepted()
        except KubernetesNotFound:
            return None
        return _decode_daemon_set(raw, namespace, name)

    async def daemon_sets(self) -> tuple[DaemonSet, ...]:
        """Every DaemonSet of the cluster."""
        answer = await self._connection.ask("list the DaemonSets", "GET", "/apis/apps/v1/daemonsets")
        names = ((raw, raw["metadata"]) for raw in answer.accepted()["items"])
        return tuple(_decode_daemon_set(raw, meta.get("namespace", ""), meta["name"]) for raw, meta in names)

    async def delete_daemon_set(self, namespace: str, name: str) -> None:
        """Delete it, after its pods; does nothing when there is none."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        what = f"delete DaemonSet {namespace}/{name}"
        answer = await self._connection.ask(what, "DELETE", _daemon_set(namespace, name), options)
        if answer.status != 404:
            answer.accepted()

    async def nodes_of_pods(self, namespace: str, labels: Mapping[str, str]) -> Mapping[str, str]:
        """The node of each bound pod with these labels, by pod name."""
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in sorted(labels.items()))}
        path = f"/api/v1/namespaces/{namespace}/pods"
        answer = await self._connection.ask(f"list the pods in {namespace}", "GET", path, query=query)
        found = ((item["metadata"]["name"], item["spec"].get("nodeName")) for item in answer.accepted()["items"])
        return {pod: node for pod, node in found if node}

    async def delete_lease(self, namespace: str, name: str) -> None:
        """Remove the lease; does nothing when there is none."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        answer = await self._connection.ask(f"delete lease {namespace}/{name}", "DELETE", path)
        if answer.status != 404:
            answer.accepted()

    async def delete_leases(self, namespace: str, label: str) -> None:
        """Remove every lease that has the label, with any value."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        query = {"labelSelector": label}
        (await self._connection.ask(f"delete the leases in {namespace}", "DELETE", path, query=query)).accepted()

    async def nodes(self) -> AsyncIterator[KubeNode]:
        """Every node."""
        async for raw in listed(self._connection, "the nodes", "/api/v1/nodes"):
            yield decode_node(raw)

    async def remove_node_condition(self, name: str, type_: str) -> None:
        """Remove one condition from a node's status."""
        patch = {"status": {"conditions": [{"type": type_, "$patch": "delete"}]}}
        what, path = f"remove condition {type_} of node {name}", f"/api/v1/nodes/{name}/status"
        content_type = "application/strategic-merge-patch+json"
        (await self._connection.ask(what, "PATCH", path, patch, content_type=content_type)).accepted()


def _decode_daemon_set(raw: Mapping[str, Any], namespace: str, name: str) -> DaemonSet:
    spec = raw.get("spec") or {}
    deleting = (raw.get("metadata") or {}).get("deletionTimestamp") is not None
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    arguments = tuple(word for each in containers for word in (*(each.get("command") or ()), *(each.get("args") or ())))
    return DaemonSet(name, deleting, (spec.get("selector") or {}).get("matchLabels") or {}, arguments, namespace)


def _daemon_set(namespace: str, name: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
