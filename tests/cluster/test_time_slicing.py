"""Replicas on a real kubelet: NVIDIA's documented files give its names and labels, and their pods share a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster.agents import AgentPod, agent_on, install_rights
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import labels
from cluster.waiting import wait_for
from cluster.workloads import deployment, phase, phases, pod, pods_in

from tests.cluster.test_device_plugin import LOOK, counts, cut, devices_seen, run_pod, wait_for_counts

pytestmark = pytest.mark.cluster

CONFIG_LABEL = "nvidia.com/device-plugin.config"
FILES = {
    "whole": "version: v1\n",
    "four": ("version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 4\n"),
    "named": (
        "version: v1\nsharing:\n  timeSlicing:\n    renameByDefault: true\n    failRequestsGreaterThanOne: true\n"
        "    resources:\n    - name: nvidia.com/gpu\n      replicas: 4\n"
    ),
    "mixed": (
        "version: v1\nflags:\n  migStrategy: mixed\nsharing:\n  timeSlicing:\n    renameByDefault: false\n"
        "    failRequestsGreaterThanOne: false\n    resources:\n"
        "    - name: nvidia.com/gpu\n      replicas: 8\n"
        "    - name: nvidia.com/mig-1g.5gb\n      replicas: 2\n"
        "    - name: nvidia.com/mig-2g.10gb\n      replicas: 2\n"
        "    - name: nvidia.com/mig-3g.20gb\n      replicas: 3\n"
        "    - name: nvidia.com/mig-7g.40gb\n      replicas: 7\n"
    ),
}


@contextmanager
def shared_node(cluster: Cluster, node: Node, key: str) -> Iterator[AgentPod]:
    """The plugin and the labels on a node that chooses that one of the files; its GPUs are new afterwards."""
    install_rights(cluster)
    name = {"name": "sharing", "namespace": "tranche-system"}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": FILES})
    choose(cluster, node, key)
    options = ("--without=mig-manager", "--refresh-seconds=0.3", "--plugin-config-map=sharing")
    try:
        with agent_on(cluster, node, *options) as agent:
            yield agent
    finally:
        cluster.kubectl("label", "node", node.name, f"{CONFIG_LABEL}-")
        node.renew_machine()


def choose(cluster: Cluster, node: Node, key: str) -> None:
    cluster.kubectl("label", "node", node.name, f"{CONFIG_LABEL}={key}", "--overwrite")


def wait_for_labels(cluster: Cluster, node: Node, resource: str, **expected: str) -> None:
    def shown() -> bool:
        now = labels(cluster, node)
        return all(
            now.get(f"nvidia.com/{resource}.{part.replace('_', '-')}") == each for part, each in expected.items()
        )

    wait_for(f"{node.name} is labelled {expected}", shown, explain=lambda: str(labels(cluster, node)))


def test_pods_share_a_gpu_that_has_no_mig_and_go_on_when_kubelet_and_agent_start_anew(
    cluster: Cluster, g4dn: Node, namespace: str
) -> None:
    with shared_node(cluster, g4dn, "four") as agent:
        wait_for_counts(cluster, g4dn, gpu=4)
        wait_for_labels(cluster, g4dn, "gpu", product="Tesla-T4-SHARED", replicas="4", sharing_strategy="time-slicing")
        cluster.apply(deployment("many", namespace, 5, node=g4dn.name, script=LOOK, limits={"nvidia.com/gpu": 1}))
        wait_for("4 pods run", lambda: phases(cluster, namespace) == {"Running": 4, "Pending": 1}, timeout=120)
        (shares,) = devices_seen(cluster, namespace).values()
        assert shares == 4, "all of one GPU"

        g4dn.restart_kubelet()
        agent.end()
        agent.restarted().wait_until_ready()
        wait_for_counts(cluster, g4dn, gpu=4)
        assert phases(cluster, namespace) == {"Running": 4, "Pending": 1}
        (one, *_) = (item for item in pods_in(cluster, namespace) if item["status"]["phase"] == "Running")
        cluster.kubectl("delete", "pod", one["metadata"]["name"], f"--namespace={namespace}", "--grace-period=1")
        wait_for("the next one has its part", lambda: phases(cluster, namespace) == {"Running": 4, "Pending": 1})
        assert set(devices_seen(cluster, namespace).values()) == {4}

        choose(cluster, g4dn, "whole")
        wait_for_counts(cluster, g4dn)
        cluster.kubectl("delete", "deployment", "many", f"--namespace={namespace}")
        wait_for_counts(cluster, g4dn, gpu=1)

        choose(cluster, g4dn, "named")
        wanted = {"nvidia.com/gpu": 0, "nvidia.com/gpu.shared": 4}
        wait_for("replicas have their own name", lambda: counts(cluster, g4dn) == wanted)
        wait_for_labels(cluster, g4dn, "gpu", product="Tesla-T4", replicas="4", sharing_strategy="time-slicing")
        greedy = pod("greedy", namespace, script=LOOK, node=g4dn.name, limits={"nvidia.com/gpu.shared": 2})
        cluster.apply(greedy)
        wait_for("a request for two fails", lambda: phase(cluster, namespace, "greedy") == "Failed")
        said = cluster.kubectl("describe", "pod", "greedy", f"--namespace={namespace}")
        assert "maximum request size for shared resources is 1; found 2" in said


@pytest.mark.long
def test_slices_are_shared_under_their_own_names(cluster: Cluster, p4d: Node, namespace: str) -> None:
    with shared_node(cluster, p4d, "mixed"):
        wait_for_counts(cluster, p4d, gpu=64)
        cut(p4d, "all-balanced")
        wait_for_counts(cluster, p4d, mig_1g_5gb=32, mig_2g_10gb=16, mig_3g_20gb=24)
        product = "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED"
        wait_for_labels(cluster, p4d, "mig-3g.20gb", product=product, replicas="3", sharing_strategy="time-slicing")
        seen = run_pod(cluster, namespace, "two", p4d, mig_3g_20gb=2).splitlines()
        assert len(seen) == 2, "two replicas of one slice"
        assert "MIG 3g.20gb" in seen[1]
