"""Components that keep the node object and the node's pods as the API server last reported them."""

from __future__ import annotations

from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.objects import KubeNode, KubePod
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.latest_value import LatestValue


class NodeWatch:
    """Publishes one node's object, None while the cluster has no node of that name."""

    name = "node-watch"

    def __init__(self, api: KubeClient, node_name: str) -> None:
        self.latest: LatestValue[KubeNode | None] = LatestValue()
        self._api = api
        self._node_name = node_name

    def ready(self) -> Readiness:
        """Ready once the node was seen."""
        if not self.latest.synced:
            return Readiness(False, f"node {self._node_name} has not been read from the API server yet")
        if self.latest.value is None:
            return Readiness(False, f"the cluster has no node {self._node_name}")
        return Readiness(True)

    async def run(self) -> None:
        """Follow the node until cancelled."""
        async for node in self._api.watch_node(self._node_name):
            self.latest.publish(node)


class PodWatch:
    """Publishes the pods that are bound to one node.

    They may be a moment late. The register of holders therefore asks again: a pod of the same name may be a different one by now.
    """

    name = "pod-watch"

    def __init__(self, api: KubeClient, node_name: str) -> None:
        self.latest: LatestValue[tuple[KubePod, ...]] = LatestValue()
        self._api = api
        self._node_name = node_name

    def ready(self) -> Readiness:
        """Ready once the pods were seen."""
        if not self.latest.synced:
            return Readiness(False, f"the pods of node {self._node_name} have not been read from the API server yet")
        return Readiness(True)

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        async for pods in self._api.watch_pods_on_node(self._node_name):
            self.latest.publish(pods)
