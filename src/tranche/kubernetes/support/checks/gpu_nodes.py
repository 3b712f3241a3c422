"""Which nodes have GPUs, according to the API server."""

from __future__ import annotations

import re

from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.quantity import gpu_counts
from tranche.kubernetes.support.facts import ClusterFacts

AGENT_LABELS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present", "tranche.dev/gpu")
"""Any of these, as `true`, makes the chart's affinity put an agent on the node."""

_OTHER_LABELS = (
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "k8s.amazonaws.com/accelerator",
    "cloud.google.com/gke-accelerator",
)
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
# AWS's families with NVIDIA GPUs; g4ad has AMD's.
_AWS = re.compile(r"(p[2-9][a-z]*|g[3-9](?!ad)[a-z]*)(-[a-z0-9]+)?\.[a-z0-9-]+")


def why_gpu(node: KubeNode) -> str:
    """What shows that the node has NVIDIA GPUs; "" if nothing does."""
    for label in (*AGENT_LABELS, *_OTHER_LABELS):
        value = node.labels.get(label, "")
        if value and value != "false":
            return f"label {label}={value}"
    counted = sorted(key for key, count in gpu_counts(node.capacity).items() if count > 0)
    if counted:
        return f"capacity {counted[0]}"
    kind = node.labels.get(_INSTANCE_TYPE, "")
    return f"instance type {kind}" if _AWS.fullmatch(kind) else ""


def gpu_nodes(facts: ClusterFacts) -> tuple[KubeNode, ...]:
    """The nodes with GPUs, and those with an agent's pod."""
    with_agent = {pod.node for each in facts.agents for pod in each.pods}
    return tuple(node for node in facts.nodes if node.name in with_agent or why_gpu(node))
