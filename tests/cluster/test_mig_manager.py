"""Layouts on a real cluster: labels in, slices and pods out; nothing that runs is disturbed; what fails says why and heals.

One test has a second agent beside the pod's: that one is a process, since a DaemonSet makes one pod for a node.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster.agents import AgentPod, agent_command, agent_on
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import (
    condition,
    label,
    labels,
    node_object,
    remove_layouts,
    slices,
    time_label,
    wait_for_slices,
    wait_for_state,
    write_layouts,
)
from cluster.waiting import wait_for
from cluster.workloads import FOREVER, SHOW_DEVICES, deployment, first_lines, phases, pod, pods_in

pytestmark = pytest.mark.cluster

SHOW = f"{SHOW_DEVICES}; {FOREVER}"
SMALLER = """
version: v1
mig-configs:
  smaller: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 4, 3g.20gb: 1}}]
  too-much: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 3}}]
  elsewhere: [{devices: [11], mig-enabled: true, mig-devices: {3g.20gb: 2}}]
"""


@contextmanager
def managed(cluster: Cluster, node: Node, *options: str) -> Iterator[AgentPod]:
    """The agent on the node; afterwards the node has no layout, and its machine is as new."""
    try:
        with agent_on(cluster, node, "--mig-strategy=mixed", *options) as agent:
            yield agent
    finally:
        label(cluster, node, None)
        remove_layouts(cluster)
        node.renew_machine()


def scale(cluster: Cluster, namespace: str, name: str, replicas: int) -> None:
    cluster.kubectl("scale", f"deployment/{name}", f"--replicas={replicas}", "--namespace", namespace)


def wait_for_pods(cluster: Cluster, namespace: str, **expected: int) -> None:
    wait_for(
        f"pods: {expected}",
        lambda: phases(cluster, namespace) == expected,
        timeout=300,
        explain=lambda: str(phases(cluster, namespace)),
    )


@pytest.mark.long
def test_56_of_100_pods_run_in_56_slices_and_then_three_sizes_at_once(
    cluster: Cluster, p4d: Node, namespace: str
) -> None:
    with managed(cluster, p4d):
        wait_for_slices(cluster, p4d, gpu=8)
        label(cluster, p4d, "all-1g.5gb")
        wait_for_state(cluster, p4d, "success")
        wait_for_slices(cluster, p4d, mig_1g_5gb=56)
        assert node_object(cluster, p4d)["status"]["allocatable"]["nvidia.com/gpu"] == "0"

        cluster.apply(deployment("small", namespace, 100, script=SHOW, limits={"nvidia.com/mig-1g.5gb": 1}))
        wait_for_pods(cluster, namespace, Running=56, Pending=44)
        given = first_lines(cluster, namespace)
        assert len(set(given.values())) == 56
        assert all(uuid.startswith("MIG-") for uuid in given.values())
        one, uuid = next(iter(given.items()))
        seen = cluster.kubectl("exec", one, "--namespace", namespace, "--", "nvidia-smi", "-L")
        assert (seen.count("GPU "), seen.count("MIG 1g.5gb")) == (1, 1)
        assert uuid in seen
        table = cluster.kubectl("exec", one, "--namespace", namespace, "--", "nvidia-smi")
        assert re.findall(r"MiB / +(\d+)MiB", table).count("4864") == 1, table

        scale(cluster, namespace, "small", 0)
        wait_for_pods(cluster, namespace)
        label(cluster, p4d, "all-balanced")
        wait_for_state(cluster, p4d, "success")
        wait_for_slices(cluster, p4d, mig_1g_5gb=16, mig_2g_10gb=8, mig_3g_20gb=8)
        scale(cluster, namespace, "small", 20)
        cluster.apply(deployment("medium", namespace, 20, script=SHOW, limits={"nvidia.com/mig-2g.10gb": 1}))
        cluster.apply(deployment("large", namespace, 20, script=SHOW, limits={"nvidia.com/mig-3g.20gb": 1}))
        wait_for_pods(cluster, namespace, Running=32, Pending=28)
        assert _running(cluster, namespace) == {"small": 16, "medium": 8, "large": 8}
        assert len(set(first_lines(cluster, namespace).values())) == 32


@pytest.mark.long
@pytest.mark.parametrize("turn", range(int(os.environ.get("TRANCHE_BACKLOG_TURNS", "1"))))
def test_over_a_backlog_three_sizes_come_about_when_the_pods_are_deleted(
    cluster: Cluster, p4d: Node, namespace: str, turn: int
) -> None:
    """56 of 70 small pods run; then another layout, the other two sizes, and all small pods deleted once: no more is done."""
    with managed(cluster, p4d):
        label(cluster, p4d, "all-1g.5gb")
        wait_for_slices(cluster, p4d, mig_1g_5gb=56)
        cluster.apply(deployment("small", namespace, 70, script=SHOW, limits={"nvidia.com/mig-1g.5gb": 1}))
        wait_for_pods(cluster, namespace, Running=56, Pending=14)
        label(cluster, p4d, "all-balanced")
        wait_for_state(cluster, p4d, "pending", "GpuBusy")
        cluster.apply(deployment("medium", namespace, 20, script=SHOW, limits={"nvidia.com/mig-2g.10gb": 1}))
        cluster.apply(deployment("large", namespace, 20, script=SHOW, limits={"nvidia.com/mig-3g.20gb": 1}))
        cluster.kubectl(
            "delete", "pods", "--selector=app=small", "--namespace", namespace, "--grace-period=1", "--wait=false"
        )
        wait_for_state(cluster, p4d, "success")
        wait_for_slices(cluster, p4d, mig_1g_5gb=16, mig_2g_10gb=8, mig_3g_20gb=8)
        # A pod that the scheduler sent for a slice while it was withdrawn has failed, and was replaced.
        wait_for(
            "16, 8 and 8 pods run",
            lambda: _running(cluster, namespace) == {"small": 16, "medium": 8, "large": 8},
            timeout=300,
            explain=lambda: str(phases(cluster, namespace)),
        )
        assert len(set(first_lines(cluster, namespace).values())) == 32


@pytest.mark.long
def test_pods_run_on_in_slices_that_stay_while_the_rest_is_cut_anew(
    cluster: Cluster, p4d: Node, namespace: str, record_property: Callable[[str, object], None]
) -> None:
    with managed(cluster, p4d) as agent:
        label(cluster, p4d, "all-balanced")
        wait_for_slices(cluster, p4d, mig_1g_5gb=16, mig_2g_10gb=8, mig_3g_20gb=8)
        cluster.apply(deployment("large", namespace, 8, script=SHOW, limits={"nvidia.com/mig-3g.20gb": 1}))
        wait_for_pods(cluster, namespace, Running=8)
        before, kubelet, plugin = first_lines(cluster, namespace), p4d.unit("kubelet").pid, agent.pid
        write_layouts(cluster, SMALLER)
        times = time_label(cluster, p4d, "smaller", {"mig-1g.5gb": 32, "mig-3g.20gb": 8})
        record_property(
            "figure", f"a layout around 8 running pods: allocatable {times.after:.2f} s after NVML was done"
        )
        after = pods_in(cluster, namespace)
        assert {each["metadata"]["name"] for each in after} == set(before)
        assert all(each["status"]["containerStatuses"][0]["restartCount"] == 0 for each in after)
        assert first_lines(cluster, namespace) == before
        present = p4d.run("nvidia-smi", "-L")
        assert all(uuid in present for uuid in before.values())
        assert (p4d.unit("kubelet").pid, agent.pid) == (kubelet, plugin)


def test_a_slice_in_use_is_waited_for_and_blocks_only_itself(cluster: Cluster, p4d: Node, namespace: str) -> None:
    with managed(cluster, p4d):
        label(cluster, p4d, "all-1g.5gb")
        wait_for_slices(cluster, p4d, mig_1g_5gb=56)
        cluster.apply(pod("one", namespace, script=SHOW, limits={"nvidia.com/mig-1g.5gb": 1}))
        wait_for_pods(cluster, namespace, Running=1)
        label(cluster, p4d, "all-3g.20gb")
        wait_for_state(cluster, p4d, "pending", "GpuBusy")
        wait_for("the rest is cut", lambda: slices(cluster, p4d).get("mig-3g.20gb") == 15)
        assert f"pod {namespace}/one" in condition(cluster, p4d)["message"]
        cluster.kubectl("delete", "pod", "one", "--namespace", namespace)
        wait_for_state(cluster, p4d, "success")
        wait_for_slices(cluster, p4d, mig_3g_20gb=16)


def test_drain_evicts_within_the_disruption_budget_and_uncordons(cluster: Cluster, p4d: Node, namespace: str) -> None:
    with managed(cluster, p4d, "--in-use=drain"):
        label(cluster, p4d, "all-1g.5gb")
        wait_for_slices(cluster, p4d, mig_1g_5gb=56)
        cluster.apply(deployment("work", namespace, 2, limits={"nvidia.com/mig-1g.5gb": 1}))
        wait_for_pods(cluster, namespace, Running=2)
        cluster.apply(_budget(namespace, 2))
        label(cluster, p4d, "all-7g.40gb")
        wait_for(
            "the budget is named",
            lambda: "disruption budget" in condition(cluster, p4d).get("message", ""),
            explain=lambda: str(condition(cluster, p4d)),
        )
        assert phases(cluster, namespace) == {"Running": 2}
        assert node_object(cluster, p4d)["spec"]["unschedulable"]
        cluster.apply(_budget(namespace, 0))
        wait_for_state(cluster, p4d, "success")
        wait_for_slices(cluster, p4d, mig_7g_40gb=8)
        wait_for("uncordoned", lambda: not node_object(cluster, p4d)["spec"].get("unschedulable"))
        wait_for_pods(cluster, namespace, Pending=2)


@pytest.mark.long
def test_what_cannot_be_is_failed_with_its_reason_and_heals_without_a_restart(cluster: Cluster, p4d: Node) -> None:
    with managed(cluster, p4d) as agent:
        pid, calls = agent.pid, p4d.machine.total_change_calls()
        for layout, text, reason in [
            ("nonsense", SMALLER, "LayoutUnknown"),
            ("still-nonsense", "version: v1\nmig-configs: [", "LayoutInvalid"),
            ("too-much", SMALLER, "LayoutImpossible"),
            ("elsewhere", SMALLER, "GpuNotFound"),
        ]:
            label(cluster, p4d, layout)
            write_layouts(cluster, text)
            wait_for_state(cluster, p4d, "failed", reason)
            described = cluster.kubectl("describe", "node", p4d.name)
            assert "MigLayoutApplied" in described
            assert reason in described
        assert p4d.machine.total_change_calls() == calls
        label(cluster, p4d, "smaller")
        wait_for_state(cluster, p4d, "success")
        wait_for_slices(cluster, p4d, mig_1g_5gb=32, mig_3g_20gb=8)
        assert agent.pid == pid


def test_a_second_manager_is_noticed_and_nothing_is_cut_until_it_is_gone(
    cluster: Cluster, p4d: Node, tmp_path: Path
) -> None:
    with managed(cluster, p4d):
        calls = p4d.machine.total_change_calls()
        program, *words = agent_command(cluster, p4d, "--without=device-plugin", "--without=feature-labels")
        other = p4d.start_program("agent-2", [program, "--state-dir", str(tmp_path), *words])
        try:
            wait_for("both are there", lambda: len(_claims(cluster, p4d)) == 2)
            label(cluster, p4d, "all-1g.5gb")
            wait_for_state(cluster, p4d, "failed", "ManagerConflict")
            assert p4d.machine.total_change_calls() == calls
        finally:
            other.stop()
        wait_for_state(cluster, p4d, "success")
        assert len(_claims(cluster, p4d)) == 1


def test_operand_labels_are_paused_for_the_cut_and_never_left_so(cluster: Cluster, p4d: Node) -> None:
    operand = "nvidia.com/gpu.deploy.dcgm-exporter"
    with managed(cluster, p4d):
        cluster.kubectl("label", "node", p4d.name, f"{operand}=true")
        try:
            label(cluster, p4d, "all-1g.5gb")
            wait_for_state(cluster, p4d, "success")
            assert labels(cluster, p4d)[operand] == "true"
            managed_fields = str(node_object(cluster, p4d)["metadata"]["annotations"])
            assert "operands-paused" not in managed_fields
        finally:
            cluster.kubectl("label", "node", p4d.name, f"{operand}-")


def _running(cluster: Cluster, namespace: str) -> Counter[str]:
    """How many pods of each deployment run."""
    return Counter(
        each["metadata"]["labels"]["app"]
        for each in pods_in(cluster, namespace)
        if each["status"]["phase"] == "Running"
    )


def _claims(cluster: Cluster, node: Node) -> list[str]:
    annotations = node_object(cluster, node)["metadata"].get("annotations", {})
    return [key for key in annotations if key.startswith("mig-manager.tranche.dev/")]


def _budget(namespace: str, least: int) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "work", "namespace": namespace},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "work"}}},
    }
