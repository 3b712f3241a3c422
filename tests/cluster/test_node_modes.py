"""A node's mode on a real kubelet: manifests of the device plugin run on a dynamic node, and modes change while pods run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster.agents import AgentPod, agent_on, install_rights, remove_device_classes
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import phase, pod

from tests.cluster.test_device_plugin import counts, wait_for_counts

pytestmark = pytest.mark.cluster

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"


@pytest.fixture
def dynamic_agent(cluster: Cluster, p4d: Node) -> Iterator[AgentPod]:
    """An agent that serves claims, on a node without a mode."""
    try:
        with agent_on(cluster, p4d, "--mig-strategy=mixed", "--with-dra", "--refresh-seconds=0.3") as agent:
            yield agent
    finally:
        set_mode(cluster, p4d, None)
        cluster.api.delete_all(SLICES)
        remove_device_classes(cluster)
        p4d.renew_machine()
        install_rights(cluster)


def set_mode(cluster: Cluster, node: Node, mode: str | None) -> None:
    cluster.api.merge(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {"tranche.dev/mode": mode}}})


def offered(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The devices that claims are shown, by name."""
    found = [device for each in cluster.api.get(SLICES)["items"] for device in each["spec"].get("devices", ())]
    return {device["name"]: device for device in found}


def taints(cluster: Cluster, name: str) -> set[str]:
    return {each["key"] for each in offered(cluster).get(name, {}).get("taints", ())}


def given(cluster: Cluster, namespace: str, name: str) -> str:
    """The device of the claim that the scheduler made for a pod."""
    status = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]["extendedResourceClaimStatus"]
    claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    claim = cluster.api.get(f"{claims}/{status['resourceClaimName']}")
    return str(claim["status"]["allocation"]["devices"]["results"][0]["device"])


def start(cluster: Cluster, namespace: str, name: str, node: Node, **limits: int) -> None:
    names = {"gpu": GPU, "slice": SLICE}
    wanted = {names[each]: count for each, count in limits.items()}
    cluster.apply(pod(name, namespace, node=node.name, limits=wanted))


def runs(cluster: Cluster, namespace: str, name: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    wait_for(
        f"{name} runs",
        lambda: phase(cluster, namespace, name) == "Running",
        explain=lambda: f"on {cluster.api.get(path)['spec'].get('nodeName')}: {cluster.api.get(path)['status']}",
    )


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_manifests_of_the_device_plugin_run_on_a_dynamic_node_and_modes_change_while_they_run(
    cluster: Cluster, p4d: Node, dynamic_agent: AgentPod, namespace: str
) -> None:
    wait_for_counts(cluster, p4d, gpu=8)
    assert offered(cluster) == {}
    start(cluster, namespace, "before", p4d, gpu=1)
    runs(cluster, namespace, "before")

    set_mode(cluster, p4d, "dynamic")
    wait_for("claims are shown the node", lambda: len(offered(cluster)) > 300)
    # The pod of the device plugin keeps its GPU, which is all that the kubelet still counts.
    wait_for_counts(cluster, p4d, gpu=1)
    held = {name for name in offered(cluster) if "tranche.dev/held" in taints(cluster, name)}
    assert len({name.split("-")[1] for name in held}) == 1
    start(cluster, namespace, "slice", p4d, slice=1)
    runs(cluster, namespace, "slice")
    assert "-1g-5gb-" in given(cluster, namespace, "slice")

    cluster.kubectl("delete", "pod", "before", "--namespace", namespace, "--grace-period=1")
    wait_for_counts(cluster, p4d)
    assert counts(cluster, p4d)[GPU] == 0
    start(cluster, namespace, "whole", p4d, gpu=1)
    runs(cluster, namespace, "whole")
    assert given(cluster, namespace, "whole").removeprefix("gpu-").isdecimal()
    # An agent that starts beside them takes neither for a pod of the device plugin whose devices nobody knows.
    dynamic_agent.end()
    dynamic_agent.restarted().wait_until_ready()
    start(cluster, namespace, "beside", p4d, slice=1)
    runs(cluster, namespace, "beside")
    assert "-1g-5gb-" in given(cluster, namespace, "beside")
    assert {name: count for name, count in counts(cluster, p4d).items() if count} == {}

    set_mode(cluster, p4d, "static")
    wait_for("what claims have is shown on, and no more", lambda: 0 < len(offered(cluster)) < 100)
    assert {given(cluster, namespace, "slice"), given(cluster, namespace, "whole")} <= offered(cluster).keys()
    wait_for_counts(cluster, p4d, gpu=6)
    start(cluster, namespace, "after", p4d, gpu=1)
    runs(cluster, namespace, "after")
    for name in ("slice", "whole", "beside"):
        assert phase(cluster, namespace, name) == "Running"
        cluster.kubectl("delete", "pod", name, "--namespace", namespace, "--grace-period=1")
    wait_for("claims have nothing of the node any more", lambda: offered(cluster) == {})
