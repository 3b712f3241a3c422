"""Are the nodes with GPUs healthy, and do their versions fit the API server's?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tranche.kubernetes.mig_manager.drain import CORDON_ANNOTATION
from tranche.kubernetes.support.checks.gpu_nodes import gpu_nodes
from tranche.kubernetes.support.facts import ClusterFacts, SurveyedNode
from tranche.kubernetes.support.findings import ClusterFinding
from tranche.node.health.checkup import Status

OLDEST_MINOR = 27
"""The oldest minor version of Kubernetes 1 that the chart takes."""

_SKEW = 3
_BAD_WHEN_TRUE = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def check_nodes(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Conditions and cordons of the GPU nodes, and the versions of the API server and of their kubelets."""
    server = _minor(facts.server_version)
    if server is not None and server < OLDEST_MINOR:
        yield ClusterFinding(
            "versions",
            Status.FAIL,
            f"the API server is {facts.server_version}, and the chart needs 1.{OLDEST_MINOR}",
            "upgrade the cluster",
        )
    nodes = gpu_nodes(facts)
    if not nodes:
        yield ClusterFinding(
            "nodes",
            Status.WARN,
            "no node shows a GPU",
            "a node is known by its labels, its capacity or its instance type",
        )
    for node in nodes:
        yield from _conditions(node)
        yield from _skew(node, facts.server_version)


def _conditions(node: SurveyedNode) -> Iterator[ClusterFinding]:
    ready = node.condition("Ready")
    where = (node.name,)
    wrong = False
    if ready is None or ready.status != "True":
        wrong = True
        said = "it never reported" if ready is None else f"{ready.reason}: {ready.message}"
        yield ClusterFinding(
            "node", Status.FAIL, f"is not Ready ({said})", "its kubelet or its machine; running pods go on", where
        )
    for each in node.conditions:
        if each.type in _BAD_WHEN_TRUE and each.status == "True":
            wrong = True
            yield ClusterFinding(
                "node", Status.FAIL, f"{each.type}: {each.message}", "free what is short on the node", where
            )
    if CORDON_ANNOTATION in node.annotations:
        wrong = True
        yield ClusterFinding(
            "node",
            Status.WARN,
            "is cordoned by its agent, which makes room for a layout",
            "it ends with the layout; a failed one keeps it until the label is changed",
            where,
        )
    elif node.unschedulable:
        wrong = True
        yield ClusterFinding("node", Status.WARN, "is cordoned", f"kubectl uncordon {node.name}", where)
    if not wrong:
        yield ClusterFinding("node", Status.PASS, "is Ready", nodes=where)


def _skew(node: SurveyedNode, server: str) -> Iterator[ClusterFinding]:
    kubelet, api = _minor(node.kubelet_version), _minor(server)
    if kubelet is None or api is None:
        return
    if kubelet > api or api - kubelet > _SKEW:
        yield ClusterFinding(
            "versions",
            Status.FAIL,
            f"its kubelet is {node.kubelet_version}, and the API server {server}",
            f"Kubernetes allows a kubelet up to {_SKEW} minor versions older than its API server, and none newer",
            (node.name,),
        )


def _minor(version: str) -> int | None:
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None
