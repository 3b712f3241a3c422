"""/metrics of an agent on a real node: the pods that the kubelet runs stand on the slices that they see."""

from __future__ import annotations

import re
import urllib.request

import pytest
from cluster.agents import AgentPod
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import FOREVER, SHOW_DEVICES, deployment, first_lines, phases

from tests.cluster.test_device_plugin import cut, plugin_on
from tests.kubernetes.agent.measured_node import Series, series

pytestmark = pytest.mark.cluster

SHOW = f"{SHOW_DEVICES}; {FOREVER}"


def scraped(agent: AgentPod) -> Series:
    found = re.search(r'"metrics_port": (\d+)', agent.log)
    assert found is not None, agent.log
    with urllib.request.urlopen(f"http://{agent.address}:{found[1]}/metrics", timeout=10) as answer:
        return series(answer.read().decode())


def holders(agent: AgentPod) -> dict[str, tuple[str, str]]:
    """Namespace and pod of each slice that is held."""
    states = scraped(agent)["tranche_slice_state"]
    return {each["mig_uuid"]: (each["namespace"], each["pod"]) for each, _ in states if each["state"] == "held"}


def test_each_slice_names_the_pod_that_sees_it(cluster: Cluster, p5: Node, namespace: str) -> None:
    with plugin_on(cluster, p5, "--mig-strategy=mixed") as agent:
        cut(p5, "all-3g.40gb")
        cluster.apply(deployment("work", namespace, 6, script=SHOW, limits={"nvidia.com/mig-3g.40gb": 1}))
        wait_for("six pods run", lambda: phases(cluster, namespace) == {"Running": 6})
        wait_for("they have said what they see", lambda: all(first_lines(cluster, namespace).values()))
        seen = {uuid: (namespace, pod) for pod, uuid in first_lines(cluster, namespace).items()}
        wait_for("the metrics say the same", lambda: holders(agent) == seen, explain=lambda: f"{holders(agent)} {seen}")
        wait_for("activity is measured", lambda: "tranche_slice_sm_active_ratio" in scraped(agent))
        found = scraped(agent)
        assert len(found["tranche_slice_memory_used_bytes"]) == 16
        assert {each["pod"] for each, _ in found["tranche_slice_sm_active_ratio"]} >= {pod for _, pod in seen.values()}
        assert all(value == 1.0 for _, value in found["tranche_component_ready"])
