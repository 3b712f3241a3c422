"""How long a pod takes from its creation until it runs: with a slice, and the same pod without one."""

from __future__ import annotations

from statistics import median
from time import perf_counter

from cluster.agents import agent_on
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import wait_for_slices
from cluster.waiting import wait_for
from cluster.workloads import phase, pod, pods_in

from bench.report import Report

PODS = 10
_NAMESPACE = "bench"


def run(report: Report, cluster: Cluster, node: Node) -> None:
    """Measure on a node in 56 slices."""
    report.section(
        "From a pod's creation until it runs",
        f"one pod at a time, with nvidia.com/mig-1g.5gb: 1 and without in turn, {PODS} each; in seconds.",
    )
    cluster.make_namespace(_NAMESPACE)
    with agent_on(cluster, node, "--mig-strategy=mixed"):
        wait_for_slices(cluster, node, mig_1g_5gb=56)
        _start(cluster, "warm-up", {})
        sliced, plain = [], []
        for number in range(PODS):
            sliced.append(_start(cluster, f"sliced-{number}", {"nvidia.com/mig-1g.5gb": 1}))
            plain.append(_start(cluster, f"plain-{number}", {}))
    measured = {"with a slice": sliced, "baseline: the same without one": plain}
    rows = [[name, *(f"{f(each):.2f}" for f in (median, min, max))] for name, each in measured.items()]
    report.table(["", "median", "least", "most"], rows)


def _start(cluster: Cluster, name: str, limits: dict[str, int | str]) -> float:
    """Seconds until a new pod runs; it is gone again then."""
    pods = f"/api/v1/namespaces/{_NAMESPACE}/pods"
    begun = perf_counter()
    cluster.api.request("POST", pods, pod(name, _NAMESPACE, limits=limits))
    wait_for(f"{name} runs", lambda: phase(cluster, _NAMESPACE, name) == "Running", period=0.01)
    seconds = perf_counter() - begun
    cluster.api.request("DELETE", f"{pods}/{name}")
    wait_for(f"{name} is gone", lambda: not pods_in(cluster, _NAMESPACE))
    return seconds
