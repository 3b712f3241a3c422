"""Nodes with different machines in one cluster: one configuration for all agents, a layout and a strategy of its own for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from cluster.agents import NAMESPACE, agent_on, install_rights
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import (
    label,
    labels,
    remove_layouts,
    slices,
    wait_for_slices,
    wait_for_state,
    write_layouts,
)
from cluster.waiting import wait_for
from cluster.workloads import FOREVER, deployment, log, pod, pods_in

pytestmark = pytest.mark.cluster

STRATEGY_LABEL = "nvidia.com/device-plugin.config"
STRATEGIES = ("none", "single", "mixed")
# One name for every node, and what each kind of GPU makes of it: A100 40 GB, then H100 80 GB.
LAYOUTS = """
version: v1
mig-configs:
  thirds:
    - {devices: all, device-filter: "0x20B010DE", mig-enabled: true, mig-devices: {2g.10gb: 3}}
    - {devices: all, device-filter: "0x233010DE", mig-enabled: true, mig-devices: {2g.20gb: 3}}
"""


@contextmanager
def served(cluster: Cluster, *strategies: tuple[Node, str]) -> Iterator[None]:
    """The same agent on each node; the node's label tells it which strategy to follow. The machines are new afterwards."""
    install_rights(cluster)
    data = {name: f"version: v1\nflags: {{migStrategy: {name}}}" for name in STRATEGIES}
    meta = {"name": "strategies", "namespace": NAMESPACE}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    write_layouts(cluster, LAYOUTS)
    try:
        with ExitStack() as agents:
            for node, strategy in strategies:
                cluster.kubectl("label", "node", node.name, f"{STRATEGY_LABEL}={strategy}", "--overwrite")
                agents.enter_context(agent_on(cluster, node, "--plugin-config-map=strategies"))
            yield
    finally:
        for node, _ in strategies:
            cluster.kubectl("label", "node", node.name, f"{STRATEGY_LABEL}-")
            label(cluster, node, None)
            node.renew_machine()
        remove_layouts(cluster)


@pytest.mark.long
def test_two_nodes_have_each_their_own_slices_and_one_is_cut_without_the_other(
    cluster: Cluster, p4d: Node, p5: Node, namespace: str
) -> None:
    with served(cluster, (p4d, "mixed"), (p5, "single")):
        label(cluster, p4d, "all-balanced")
        label(cluster, p5, "all-1g.10gb")
        wait_for_slices(cluster, p4d, mig_1g_5gb=16, mig_2g_10gb=8, mig_3g_20gb=8)
        wait_for_slices(cluster, p5, gpu=56)
        wait_for_state(cluster, p4d, "success")
        wait_for_state(cluster, p5, "success")

        # No pod names a node: what it asks for decides.
        cluster.apply(
            deployment("large", namespace, 8, limits={"nvidia.com/mig-3g.20gb": 1}),
            deployment("plain", namespace, 8, limits={"nvidia.com/gpu": 1}),
        )
        wait_for_running(cluster, namespace, 16)
        assert Counter(nodes_of_pods(cluster, namespace)) == {("large", "p4d"): 8, ("plain", "p5"): 8}

        # The free slices of one node are cut anew around its pods; on the other nothing is called and nothing changes.
        before, calls = starts(cluster, namespace), p5.machine.total_change_calls()
        label(cluster, p4d, "all-3g.20gb")
        wait_for_slices(cluster, p4d, mig_3g_20gb=16)
        wait_for_state(cluster, p4d, "success")
        assert slices(cluster, p5) == {"gpu": 56}
        assert p5.machine.total_change_calls() == calls
        assert starts(cluster, namespace) == before


@pytest.mark.long
def test_three_nodes_with_three_strategies_are_chosen_by_their_labels(
    cluster: Cluster, p4d: Node, p5: Node, g4dn: Node, namespace: str
) -> None:
    with served(cluster, (p4d, "single"), (p5, "mixed"), (g4dn, "none")):
        for node in (p4d, p5):
            label(cluster, node, "thirds")
        wait_for_slices(cluster, p4d, gpu=24)
        wait_for_slices(cluster, p5, mig_2g_20gb=24)
        for node in (p4d, p5):
            wait_for_state(cluster, node, "success")
        label(cluster, g4dn, "all-1g.5gb")
        wait_for_state(cluster, g4dn, "failed", "MigNotSupported")
        wait_for_slices(cluster, g4dn, gpu=1)

        products = [
            (p4d, "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb", "nvidia.com/gpu", ["A100-SXM4-40GB", "MIG 2g.10gb"]),
            (p5, "NVIDIA-H100-80GB-HBM3", "nvidia.com/mig-2g.20gb", ["H100 80GB HBM3", "MIG 2g.20gb"]),
            (g4dn, "Tesla-T4", "nvidia.com/gpu", ["Tesla T4"]),
        ]
        for node, product, resource, _ in products:
            wait_for_product(cluster, node, product)
            wanted = pod(node.name, namespace, script=f"nvidia-smi -L; {FOREVER}", limits={resource: 1})
            wanted["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": product}
            cluster.apply(wanted)
        wait_for_running(cluster, namespace, len(products))
        assert set(nodes_of_pods(cluster, namespace)) == {(node.name, node.name) for node, *_ in products}
        for node, _, _, devices in products:
            lines = wait_for(f"{node.name}'s pod has looked", partial(log, cluster, namespace, node.name)).splitlines()
            assert len(lines) == len(devices), lines
            assert all(device in line for device, line in zip(devices, lines, strict=True)), lines

        # What one node cannot do stays its own failure, and is over with its own wish.
        label(cluster, g4dn, "all-disabled")
        wait_for_state(cluster, g4dn, "success")
        assert (slices(cluster, p4d), slices(cluster, p5)) == ({"gpu": 24}, {"mig-2g.20gb": 24})


def wait_for_running(cluster: Cluster, namespace: str, count: int) -> None:
    """Wait until exactly that many pods are there and run."""

    def phases() -> Counter[str]:
        return Counter(each["status"]["phase"] for each in pods_in(cluster, namespace))

    wait_for(f"{count} pods run", lambda: phases() == {"Running": count}, explain=lambda: str(phases()), timeout=300)


def nodes_of_pods(cluster: Cluster, namespace: str) -> list[tuple[str, str]]:
    """For each pod its application, or its name if it has none, and the node that it runs on."""
    return [
        (each["metadata"].get("labels", {}).get("app", each["metadata"]["name"]), each["spec"]["nodeName"])
        for each in pods_in(cluster, namespace)
    ]


def starts(cluster: Cluster, namespace: str) -> dict[str, tuple[str, int]]:
    """When each pod was started, and how often its container was started again."""
    return {
        each["metadata"]["uid"]: (each["status"]["startTime"], each["status"]["containerStatuses"][0]["restartCount"])
        for each in pods_in(cluster, namespace)
    }


def wait_for_product(cluster: Cluster, node: Node, product: str) -> None:
    """Wait until the node's label names that product."""
    shown = "nvidia.com/gpu.product"
    wait_for(
        f"{node.name} is labelled {product}",
        lambda: labels(cluster, node).get(shown) == product,
        explain=lambda: str(labels(cluster, node)),
    )
