"""An agent with no more rights than its values ask for does its work, and one without GPUs idles."""

from __future__ import annotations

import pytest
from cluster.chart_values import simulated_machines
from cluster.cluster import Cluster
from cluster.helm_release import HelmRelease
from cluster.node import Node
from cluster.node_layouts import labels, wait_for_slices
from cluster.waiting import wait_for
from cluster.workloads import log, phase, pod, pods_in
from release.image import MadeImage

from tests.cluster.conftest import node_of

pytestmark = pytest.mark.cluster

SLICE = "nvidia.com/mig-3g.20gb"


def test_without_the_manager_an_agent_without_privileges_serves_pods_and_idles_on_a_node_without_gpus(
    cluster: Cluster, p4d: Node, namespace: str, agent_image: MadeImage
) -> None:
    bare = node_of(cluster, "bare", "")
    agents = f"{namespace}-agents"
    cluster.kubectl("create", "namespace", agents)
    simulated = simulated_machines(cluster.folder)
    by_name = {"key": "kubernetes.io/hostname", "operator": "In", "values": [p4d.name, bare.name]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [by_name]}]}
    values = {
        **simulated,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "nodeDiscovery": "any",
        "migManager": {"enabled": False},
        "migStrategy": "mixed",
    }
    release = HelmRelease(cluster, "least", agents, agent_image, values)
    try:
        p4d.run("nvidia-smi", "-i", "0", "-mig", "1")
        p4d.run("nvidia-smi", "-i", "0", "--gpu-reset")
        p4d.run("nvidia-smi", "mig", "-i", "0", "-cgi", "3g.20gb", "-C")
        notes = release.install()
        assert f"kubectl rollout status daemonset/{release.objects} --namespace {agents}" in notes
        assert f"kubectl label namespace {agents} pod-security.kubernetes.io/enforce=privileged" in notes
        assert "nvidia.com/mig.config" not in notes
        wait_for_slices(cluster, p4d, gpu=7, mig_3g_20gb=1)
        cluster.apply(pod("one", namespace, script="nvidia-smi -L", limits={SLICE: 1}))
        wait_for("the pod has ended", lambda: phase(cluster, namespace, "one") == "Succeeded")
        assert "MIG 3g.20gb" in log(cluster, namespace, "one")

        said = {
            item["spec"]["nodeName"]: log(cluster, agents, item["metadata"]["name"])
            for item in pods_in(cluster, agents)
        }
        assert set(said) == {p4d.name, bare.name}
        assert "no GPU: the agent serves nothing" in said[bare.name]
        assert not any(key.startswith("nvidia.com/") for key in labels(cluster, bare))
        release.uninstall()
    finally:
        cluster.kubectl("delete", "namespace", agents, "--wait=false")
        p4d.renew_machine()
