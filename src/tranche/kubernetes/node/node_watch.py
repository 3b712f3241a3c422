"""Components that keep what the API server last reported: of the node, of its pods, and of other objects that many parts need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.objects import KubeNode, KubePod
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.latest_value import LatestValue

Value = TypeVar("Value")


class ObjectWatch(Generic[Value]):
    """Publishes what a watch yields; `missing` says what has not been read before the first."""

    def __init__(self, name: str, watch: Callable[[], AsyncIterator[Value]], missing: str) -> None:
        self.name = name
        self.latest: LatestValue[Value] = LatestValue()
        self._watch = watch
        self._missing = missing

    def ready(self) -> Readiness:
        """Ready once something was read."""
        return Readiness(self.latest.synced, "" if self.latest.synced else self._missing)

    async def run(self) -> None:
        """Follow until cancelled."""
        async for found in self._watch():
            self.latest.publish(found)


class NodeWatch(ObjectWatch[KubeNode | None]):
    """Publishes one node's object, None while the cluster has no node of that name."""

    def __init__(self, api: KubeClient, node_name: str) -> None:
        missing = f"node {node_name} has not been read from the API server yet"
        super().__init__("node-watch", lambda: api.watch_node(node_name), missing)
        self._node_name = node_name

    def ready(self) -> Readiness:
        """Ready once the node was seen."""
        if self.latest.synced and self.latest.value is None:
            return Readiness(False, f"the cluster has no node {self._node_name}")
        return super().ready()


def pod_watch(api: KubeClient, node_name: str) -> ObjectWatch[tuple[KubePod, ...]]:
    """Publishes the pods that are bound to one node.

    They may be a moment late. The register of holders therefore asks again: a pod of the same name may be a different one by now.
    """
    missing = f"the pods of node {node_name} have not been read from the API server yet"
    return ObjectWatch("pod-watch", lambda: api.watch_pods_on_node(node_name), missing)
