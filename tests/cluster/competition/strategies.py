"""Ways in which a node's MIG strategy is chosen: the agent's option, or a ConfigMap with a label of the node."""

from __future__ import annotations

from cluster.agents import NAMESPACE
from cluster.cluster import Cluster
from cluster.node import Node

LABEL = "nvidia.com/device-plugin.config"
_CONFIG_MAP = "competition-strategies"
STRATEGIES = ("mixed", "single")
BY_CONFIG_MAP = f"--plugin-config-map={_CONFIG_MAP}"
AGENT_OPTIONS = (BY_CONFIG_MAP, *(f"--mig-strategy={each}" for each in STRATEGIES))


def write_default(cluster: Cluster, strategy: str) -> None:
    """Write the ConfigMap: a key for each strategy, and this one for nodes without the label."""
    texts = {each: f"version: v1\nflags:\n  migStrategy: {each}\n" for each in STRATEGIES}
    meta = {"name": _CONFIG_MAP, "namespace": NAMESPACE}
    data = {**texts, "default": texts[strategy]}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})


def label_strategy(cluster: Cluster, node: Node, strategy: str | None) -> None:
    """Choose a key of the ConfigMap by the node's label; None takes the label away."""
    cluster.api.merge(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {LABEL: strategy}}})


def remove(cluster: Cluster, node: Node) -> None:
    """Remove label and ConfigMap."""
    label_strategy(cluster, node, None)
    cluster.kubectl("delete", "configmap", _CONFIG_MAP, "--namespace", NAMESPACE, "--ignore-not-found")
