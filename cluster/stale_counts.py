"""Devices that a node's status counts though its kubelet knows nothing of them: what a lost write of the kubelet leaves.

Five minutes after a plugin has gone, the kubelet forgets its resource and writes a count of zero, once. When no API server takes
that write, the old count stays and is copied to what is allocatable; pods that name no node are placed there, and refused. On
a node with an agent the agent mends it.
"""

from __future__ import annotations

import json
from typing import Any

from cluster.cluster import Cluster
from cluster.node import Node

_DOMAIN = "nvidia.com/"


def forget_stale_counts(cluster: Cluster) -> dict[str, list[str]]:
    """Take such counts off every node: what was taken, by node."""
    found = {node.name: names for node in cluster.nodes if (names := _stale(cluster, node))}
    for name, resources in found.items():
        none: dict[str, Any] = dict.fromkeys(resources)
        patch = {"status": {"capacity": none, "allocatable": none}}
        cluster.api.merge(f"/api/v1/nodes/{name}/status", patch)
    return found


def _stale(cluster: Cluster, node: Node) -> list[str]:
    status = cluster.api.get(f"/api/v1/nodes/{node.name}")["status"]
    counted = {
        name
        for counts in (status["capacity"], status["allocatable"])
        for name, count in counts.items()
        if name.startswith(_DOMAIN) and count != "0"
    }
    return sorted(counted - _known(node)) if counted else []


def _known(node: Node) -> set[str]:
    """The resources that the kubelet has a plugin for, or had one within five minutes: it writes them down at each change."""
    try:
        checkpoint = json.loads((node.paths.device_plugins / "kubelet_internal_checkpoint").read_text())
    except FileNotFoundError:
        return set()
    return set(checkpoint["Data"]["RegisteredDevices"] or {})
