"""Feature labels on a real node: they follow the layout in place, and resources count as they say."""

from __future__ import annotations

import pytest
from cluster.agents import agent_on
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import label, labels, wait_for_slices, wait_for_state
from cluster.waiting import wait_for

pytestmark = pytest.mark.cluster


@pytest.mark.long
def test_labels_and_resources_of_strategy_single_on_a_p5(cluster: Cluster, p5: Node) -> None:
    try:
        with agent_on(cluster, p5, "--mig-strategy=single"):
            wait_for_slices(cluster, p5, gpu=8)
            _wait_for_labels(cluster, p5, product="NVIDIA-H100-80GB-HBM3", count="8", family="hopper")
            label(cluster, p5, "all-1g.10gb")
            wait_for_state(cluster, p5, "success")
            wait_for_slices(cluster, p5, gpu=56)
            _wait_for_labels(cluster, p5, product="NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", count="56", replicas="1")
            assert labels(cluster, p5)["nvidia.com/gpu.slices.gi"] == "1"
            label(cluster, p5, "all-balanced")
            wait_for_state(cluster, p5, "success")
            wait_for_slices(cluster, p5)
            _wait_for_labels(cluster, p5, product="NVIDIA-H100-80GB-HBM3-MIG-INVALID", count="0", memory="0")
            assert "nvidia.com/gpu.slices.gi" not in labels(cluster, p5)
    finally:
        label(cluster, p5, None)
        p5.renew_machine()


def test_labels_of_strategy_mixed_come_and_go_with_the_slices(cluster: Cluster, p5: Node) -> None:
    try:
        with agent_on(cluster, p5, "--mig-strategy=mixed"):
            label(cluster, p5, "all-3g.40gb")
            wait_for_slices(cluster, p5, mig_3g_40gb=16)
            wait_for("labels of 3g.40gb", lambda: labels(cluster, p5).get("nvidia.com/mig-3g.40gb.count") == "16")
            label(cluster, p5, "all-7g.80gb")
            wait_for_slices(cluster, p5, mig_7g_80gb=8)
            wait_for("labels of 7g.80gb", lambda: labels(cluster, p5).get("nvidia.com/mig-7g.80gb.count") == "8")
            assert not any("mig-3g.40gb" in key for key in labels(cluster, p5))
    finally:
        label(cluster, p5, None)
        p5.renew_machine()


def _wait_for_labels(cluster: Cluster, node: Node, **expected: str) -> None:
    def shown() -> bool:
        now = labels(cluster, node)
        return all(now.get(f"nvidia.com/gpu.{part}") == value for part, value in expected.items())

    wait_for(f"{node.name} is labelled {expected}", shown, explain=lambda: str(labels(cluster, node)))
