"""The device plugin on a real kubelet: counts, what pods see, every device-list strategy, restarts, configuration."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster.agents import AgentPod, agent_on, install_rights
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import FOREVER, SHOW_DEVICES, deployment, log, phase, phases, pod, pods_in

from tests.support.length import some_of

pytestmark = pytest.mark.cluster

TRANCHE = str(Path(sys.executable).with_name("tranche"))
# GPUs are cut by the command line here, so the plugin is alone, and the inventory looks often.
ALONE = ("--without=mig-manager", "--without=feature-labels", "--refresh-seconds=0.3")
SLICE = "nvidia.com/mig-1g.5gb"
LOOK = f"nvidia-smi -L; {FOREVER}"


@contextmanager
def plugin_on(cluster: Cluster, node: Node, *options: str) -> Iterator[AgentPod]:
    """The device plugin on a node whose GPUs are not cut; they are new afterwards."""
    try:
        with agent_on(cluster, node, *ALONE, *options) as agent:
            yield agent
    finally:
        node.renew_machine()


def cut(node: Node, layout: str) -> None:
    """Cut the node's GPUs as one of its generated layouts."""
    node.run(TRANCHE, "layout", "apply", "-c", layout)


def counts(cluster: Cluster, node: Node) -> dict[str, int]:
    """What the node has allocatable of NVIDIA's resources."""
    allocatable = cluster.api.get(f"/api/v1/nodes/{node.name}")["status"]["allocatable"]
    return {name: int(count) for name, count in allocatable.items() if name.startswith("nvidia.com/")}


def wait_for_counts(cluster: Cluster, node: Node, **expected: int) -> None:
    """Wait until just those resources are more than zero: `gpu=8`, `mig_1g_5gb=56`."""
    wanted = {f"nvidia.com/{_resource(name)}": count for name, count in expected.items()}

    def reached() -> bool:
        return {name: count for name, count in counts(cluster, node).items() if count} == wanted

    wait_for(f"{node.name} has {wanted}", reached, explain=lambda: str(counts(cluster, node)))


def _resource(name: str) -> str:
    kind, *rest = name.split("_", 1)
    return "-".join([kind, rest[0].replace("_", ".")]) if rest else kind


def devices_seen(cluster: Cluster, namespace: str) -> Counter[str]:
    """The UUIDs in the environment of each running pod's container."""
    running = [item["metadata"]["name"] for item in pods_in(cluster, namespace) if item["status"]["phase"] == "Running"]
    return Counter(
        uuid
        for name in running
        for uuid in cluster.kubectl("exec", name, f"--namespace={namespace}", "--", "sh", "-c", SHOW_DEVICES).split()
    )


def run_pod(cluster: Cluster, namespace: str, name: str, node: Node, **limits: int) -> str:
    """Run a pod that asks nvidia-smi what it sees; the answer."""
    wanted = {f"nvidia.com/{_resource(resource)}": count for resource, count in limits.items()}
    cluster.apply(pod(name, namespace, script=LOOK, node=node.name, limits=wanted))
    wait_for(f"{name} runs", lambda: phase(cluster, namespace, name) == "Running")
    return str(wait_for(f"{name} has looked", lambda: log(cluster, namespace, name)))


@pytest.mark.long
def test_slices_that_are_cut_by_hand_are_given_out_one_to_a_pod(cluster: Cluster, p4d: Node, namespace: str) -> None:
    with plugin_on(cluster, p4d, "--mig-strategy=mixed"):
        wait_for_counts(cluster, p4d, gpu=8)
        cut(p4d, "all-3g.20gb")
        wait_for_counts(cluster, p4d, mig_3g_20gb=16)
        assert counts(cluster, p4d)["nvidia.com/gpu"] == 0

        limits = {"nvidia.com/mig-3g.20gb": 1}
        cluster.apply(deployment("many", namespace, 20, node=p4d.name, script=LOOK, limits=limits))
        wait_for("16 pods run", lambda: phases(cluster, namespace) == {"Running": 16, "Pending": 4}, timeout=300)
        seen = devices_seen(cluster, namespace)
        assert len(seen) == 16
        assert set(seen.values()) == {1}
        assert all(uuid.startswith("MIG-") for uuid in seen)

        cluster.kubectl("delete", "deployment", "many", f"--namespace={namespace}")
        wait_for("the pods are gone", lambda: not pods_in(cluster, namespace), timeout=120)
        cut(p4d, "all-balanced")
        wait_for_counts(cluster, p4d, mig_1g_5gb=16, mig_2g_10gb=8, mig_3g_20gb=8)
        cut(p4d, "all-disabled")
        wait_for_counts(cluster, p4d, gpu=8)


@pytest.mark.parametrize("strategy", some_of(["cdi-cri", "envvar", "volume-mounts", "cdi-annotations"], 1))
def test_a_pod_sees_its_slices_and_nothing_else(cluster: Cluster, p4d: Node, namespace: str, strategy: str) -> None:
    with plugin_on(cluster, p4d, "--mig-strategy=mixed", f"--device-list-strategy={strategy}"):
        cut(p4d, "all-balanced")
        wait_for_counts(cluster, p4d, mig_1g_5gb=16, mig_2g_10gb=8, mig_3g_20gb=8)
        one = run_pod(cluster, namespace, "one", p4d, mig_3g_20gb=1).splitlines()
        assert len(one) == 2, one
        assert "MIG 3g.20gb" in one[1]
        two = run_pod(cluster, namespace, "two", p4d, mig_1g_5gb=2).splitlines()
        assert len(two) == 3, "two slices of one GPU: packed"
        assert sum("MIG 1g.5gb" in line for line in two) == 2


@pytest.mark.long
def test_a_pod_that_asks_to_see_all_devices_sees_its_own(cluster: Cluster, p4d: Node, namespace: str) -> None:
    """By the chart's defaults: the kubelet puts a container's own variables behind those of a device plugin."""
    with plugin_on(cluster, p4d, "--mig-strategy=mixed"):
        cut(p4d, "all-1g.5gb")
        wait_for_counts(cluster, p4d, mig_1g_5gb=56)
        greedy = pod("greedy", namespace, script=LOOK, node=p4d.name, limits={SLICE: 1})
        greedy["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        cluster.apply(greedy)
        wait_for("it runs", lambda: phase(cluster, namespace, "greedy") == "Running")
        seen = str(wait_for("it has looked", lambda: log(cluster, namespace, "greedy"))).splitlines()
        assert len(seen) == 2, seen
        assert "MIG 1g.5gb" in seen[1]


def test_a_whole_gpu_and_slices_live_on_one_node(cluster: Cluster, p4d: Node, namespace: str) -> None:
    with plugin_on(cluster, p4d, "--mig-strategy=mixed"):
        p4d.run("nvidia-smi", "-i", "0", "-mig", "1")
        p4d.run("nvidia-smi", "-i", "0", "--gpu-reset")
        p4d.run("nvidia-smi", "mig", "-i", "0", "-cgi", "3g.20gb,1g.5gb+me", "-C")
        wait_for_counts(cluster, p4d, gpu=7, mig_3g_20gb=1, mig_1g_5gb_me=1)
        assert run_pod(cluster, namespace, "whole", p4d, gpu=2).count("A100") == 2
        assert "MIG 1g.5gb+me" in run_pod(cluster, namespace, "slice", p4d, mig_1g_5gb_me=1)


@pytest.mark.long
def test_single_counts_slices_as_gpus_and_says_why_it_cannot(cluster: Cluster, p5: Node, namespace: str) -> None:
    with plugin_on(cluster, p5, "--mig-strategy=single") as agent:
        wait_for_counts(cluster, p5, gpu=8)
        cut(p5, "all-1g.10gb")
        wait_for_counts(cluster, p5, gpu=56)
        assert "MIG 1g.10gb" in run_pod(cluster, namespace, "one", p5, gpu=1)
        cluster.kubectl("delete", "pod", "one", f"--namespace={namespace}", "--grace-period=1")
        cut(p5, "all-balanced")
        wait_for_counts(cluster, p5)
        wait_for(
            "the reason is visible",
            lambda: "more than one MIG device type present on node" in cluster.kubectl("describe", "node", p5.name),
        )
        assert agent.health()[0] == 200, "an invalid layout is no failure of the agent"
        cut(p5, "all-3g.40gb")
        wait_for_counts(cluster, p5, gpu=16)


@pytest.mark.parametrize("how", some_of(["kill -9", "restart"], 1))
def test_a_kubelet_that_starts_anew_is_told_everything_again(
    cluster: Cluster, p4d: Node, namespace: str, how: str
) -> None:
    with plugin_on(cluster, p4d, "--mig-strategy=mixed") as agent:
        cut(p4d, "all-3g.20gb")
        wait_for_counts(cluster, p4d, mig_3g_20gb=16)
        before = run_pod(cluster, namespace, "steady", p4d, mig_3g_20gb=1)
        pid = agent.pid
        if how == "restart":
            p4d.restart_kubelet()
        else:
            p4d.kill9("kubelet")
            p4d.start_component("kubelet")
        agent.wait_until_ready()
        wait_for_counts(cluster, p4d, mig_3g_20gb=16)
        assert agent.pid == pid
        other = run_pod(cluster, namespace, "other", p4d, mig_3g_20gb=1)
        assert other.splitlines()[1] != before.splitlines()[1], "the slice of the running pod is not given twice"
        (steady,) = [item for item in pods_in(cluster, namespace) if item["metadata"]["name"] == "steady"]
        assert steady["status"]["containerStatuses"][0]["restartCount"] == 0


def test_an_agent_that_is_killed_comes_back_to_the_same_node(cluster: Cluster, p4d: Node, namespace: str) -> None:
    with plugin_on(cluster, p4d, "--mig-strategy=mixed") as agent:
        cut(p4d, "all-3g.20gb")
        wait_for_counts(cluster, p4d, mig_3g_20gb=16)
        before = run_pod(cluster, namespace, "steady", p4d, mig_3g_20gb=1)
        agent.end()
        agent.restarted().wait_until_ready()
        wait_for_counts(cluster, p4d, mig_3g_20gb=16)
        other = run_pod(cluster, namespace, "other", p4d, mig_3g_20gb=1)
        assert other.splitlines()[1] != before.splitlines()[1]
        assert phases(cluster, namespace) == {"Running": 2}


def test_slices_of_a_sick_gpu_are_not_given_away(cluster: Cluster, p4d: Node) -> None:
    with plugin_on(cluster, p4d, "--mig-strategy=mixed"):
        cut(p4d, "all-1g.5gb")
        wait_for_counts(cluster, p4d, mig_1g_5gb=56)

        def struck() -> bool:
            # Again: the agent listens anew to GPUs whose MIG mode has changed, and may not have done so yet.
            p4d.machine.inject_xid(3, 31)
            p4d.machine.inject_xid(4, 48)
            return counts(cluster, p4d)[SLICE] == 49

        wait_for("the slices of one GPU are given to nobody", struck, period=1.0)
        wait_for_counts(cluster, p4d, mig_1g_5gb=49)
        wait_for("the reason is visible", lambda: "XID 48" in cluster.kubectl("describe", "node", p4d.name))
        capacity = cluster.api.get(f"/api/v1/nodes/{p4d.name}")["status"]["capacity"]
        assert capacity[SLICE] == "56"


@pytest.mark.long
def test_a_count_that_nobody_serves_goes_to_zero(cluster: Cluster, p4d: Node, namespace: str) -> None:
    # A kubelet remembers a resource for five minutes after its end, so the name must be one that no other test has used.
    left, path = f"nvidia.com/mig-7g.{os.getpid()}gb", f"/api/v1/nodes/{p4d.name}"
    counted = json.dumps({"status": {"capacity": {left: "8"}}})
    cluster.kubectl("patch", "node", p4d.name, "--subresource=status", "--type=merge", f"--patch={counted}")
    # What a lost write of the kubelet leaves: it keeps the capacity, and makes it allocatable.
    wait_for("it is allocatable", lambda: counts(cluster, p4d).get(left) == 8)
    cluster.apply(pod("without", namespace, script=LOOK, node=p4d.name, limits={left: 1}))
    wait_for("a pod is given nothing", lambda: phase(cluster, namespace, "without") == "Running")
    with plugin_on(cluster, p4d, "--mig-strategy=mixed"):
        wait_for_counts(cluster, p4d, gpu=8)
        assert cluster.api.get(path)["status"]["capacity"][left] == "0"
        assert phase(cluster, namespace, "without") == "Running", "pods are left alone"
    wait_for_counts(cluster, p4d)
    assert counts(cluster, p4d)[left] == 0, "it stays so without the agent"


def test_the_nodes_label_chooses_the_configuration(cluster: Cluster, p4d: Node) -> None:
    def configure(**strategies: str) -> None:
        data = {name: f"version: v1\nflags: {{migStrategy: {strategy}}}" for name, strategy in strategies.items()}
        name = {"name": "plugin", "namespace": "tranche-system"}
        cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": data})

    label = "nvidia.com/device-plugin.config"
    install_rights(cluster)
    configure(default="none", cut="mixed")
    try:
        with plugin_on(cluster, p4d, "--plugin-config-map=plugin") as agent:
            cut(p4d, "all-3g.20gb")
            wait_for_counts(cluster, p4d, gpu=8)
            cluster.kubectl("label", "node", p4d.name, f"{label}=cut", "--overwrite")
            wait_for_counts(cluster, p4d, mig_3g_20gb=16)
            configure(default="none", cut="both")
            wait_for("it is refused", lambda: "'both' is not one of" in cluster.kubectl("describe", "node", p4d.name))
            assert agent.health()[0] == 200, "the configuration before stays in effect"
            configure(default="none", cut="single")
            wait_for_counts(cluster, p4d, gpu=16)
    finally:
        cluster.kubectl("label", "node", p4d.name, f"{label}-")
