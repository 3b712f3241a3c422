"""Does another program do the agent's work on the same nodes?"""

from __future__ import annotations

from collections.abc import Iterator

from tranche.kubernetes.support.checks.gpu_nodes import gpu_nodes
from tranche.kubernetes.support.facts import ClusterFacts
from tranche.kubernetes.support.findings import ClusterFinding
from tranche.kubernetes.support.programs import DEVICE_PLUGIN, FEATURE_LABELS, MIG_MANAGER
from tranche.node.health.checkup import Status

_CONSEQUENCE = {
    MIG_MANAGER: "each would undo the other's cuts",
    DEVICE_PLUGIN: "the kubelet takes the devices of whoever registered last",
    FEATURE_LABELS: "each overwrites the other's labels",
}
_VALUE = {
    MIG_MANAGER: ("migManager.enabled=false", "mig.manager: --set migManager.enabled=false"),
    DEVICE_PLUGIN: ("devicePlugin.enabled=false", "its plugin: --set devicePlugin.enabled=false"),
    FEATURE_LABELS: ("featureLabels.enabled=false", "its labels: --set gfd.enabled=false"),
}


def check_neighbours(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Other programs on nodes that an agent with the same part serves; and systems that partition GPUs by themselves."""
    found = False
    for other in facts.others:
        served = {
            pod.node for agents in facts.agents if other.part not in agents.daemon_set.left_out for pod in agents.pods
        }
        both = tuple(node for node in other.nodes if node in served)
        if both:
            found = True
            ours, theirs = _VALUE[other.part]
            yield ClusterFinding(
                "neighbours",
                Status.WARN if other.part == FEATURE_LABELS else Status.FAIL,
                f"{other.product} ({other.daemon_set}) runs beside the agent: {_CONSEQUENCE[other.part]}",
                f"leave the work to one: turn Tranche's part off with {ours}, or in the GPU Operator {theirs}",
                both,
            )
    for node in gpu_nodes(facts):
        if node.os_image.startswith("Bottlerocket"):
            found = True
            yield ClusterFinding(
                "neighbours",
                Status.WARN,
                "Bottlerocket partitions GPUs at boot and runs a device plugin of its own",
                "leave its GPUs to it: keep the agent away with nodeSelector, or turn Bottlerocket's settings off",
                (node.name,),
            )
    if not found and facts.agents:
        yield ClusterFinding(
            "neighbours", Status.PASS, "no other program known to doctor does the agent's work on its nodes"
        )
