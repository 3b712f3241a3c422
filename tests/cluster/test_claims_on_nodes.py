"""Claims through the real scheduler and kubelet: slices are made on the fly, kept, used again, and nobody is given one twice."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster.agents import AgentPod, agent_on
from cluster.claims import (
    claim_template,
    claims_in,
    devices_given,
    devices_published,
    give_by_claims,
    with_claim,
)
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import FOREVER, first_lines, phases, pod, pods_in

pytestmark = pytest.mark.cluster

TRANCHE = str(Path(sys.executable).with_name("tranche"))
LOOK = f"nvidia-smi -L | grep -o 'UUID: [^)]*' | tail -n 1; {FOREVER}"
SLICES = 56


@contextmanager
def claims_on(cluster: Cluster, node: Node, mode: str = "dynamic", *options: str) -> Iterator[AgentPod]:
    """The agent on a node whose GPUs are given away by claims; they are new afterwards."""
    give_by_claims(cluster, node, mode)
    try:
        with agent_on(cluster, node, "--with-dra", "--without=feature-labels", *options) as agent:
            wait_for("the node's devices are shown", lambda: devices_published(cluster, node))
            yield agent
    finally:
        give_by_claims(cluster, node, None)
        # The kubelet takes half a minute to remove them, and the scheduler of the next test believes them.
        cluster.api.delete_all("/apis/resource.k8s.io/v1/resourceslices")
        node.renew_machine()


def claiming(name: str, namespace: str, node: Node, template: str = "gpu") -> dict[str, Any]:
    """A pod with a claim that says which device it sees."""
    return with_claim(pod(name, namespace, script=LOOK, node=node.name), template)


def shares(node: Node) -> list[dict[str, Any]]:
    """The shares of the node's register."""
    found: list[dict[str, Any]] = json.loads(node.run(TRANCHE, "ps", "-o", "json"))["allocations"]
    return found


def wait_for_phases(cluster: Cluster, namespace: str, timeout: float = 300.0, **expected: int) -> None:
    """Wait until the namespace has just so many pods in each phase."""

    def explain() -> str:
        listed = cluster.kubectl("get", "pods,resourceclaims", "--namespace", namespace)
        events = cluster.kubectl("get", "events", "--namespace", namespace, "--field-selector=type=Warning")
        return f"{listed}\n{events[-4000:]}"

    wait_for(f"pods {expected}", lambda: phases(cluster, namespace) == expected, timeout=timeout, explain=explain)


def prepared_seconds(agent: AgentPod) -> list[float]:
    """How long the driver took for each claim, from the kubelet's call to the answer, sorted."""
    lines = (json.loads(line) for line in agent.log.splitlines() if '"prepared"' in line)
    return sorted(line["seconds"] for line in lines if "seconds" in line)


def gone(cluster: Cluster, node: Node, namespace: str) -> None:
    """Delete every pod, and see that nothing of them is left on the node."""
    cluster.api.delete_all(f"/api/v1/namespaces/{namespace}/pods")
    wait_for("the pods are gone", lambda: not pods_in(cluster, namespace), timeout=180)
    wait_for("the claims are gone", lambda: not claims_in(cluster, namespace))
    wait_for("the register is empty", lambda: not shares(node), explain=lambda: str(shares(node)))
    files = [path.name for path in node.paths.cdi.iterdir() if "share" in path.name]
    assert not files


@pytest.mark.long
def test_56_pods_at_once_have_a_slice_each_and_100_wait_for_their_turn(
    cluster: Cluster, p4d: Node, namespace: str, record_property: Callable[[str, object], None]
) -> None:
    with claims_on(cluster, p4d) as agent:
        # What NVML takes is not the driver's: here it takes nothing.
        p4d.machine.set_time_scale(0.0)
        cluster.apply(claim_template("gpu", namespace, requests={"memory": "4Gi"}))
        cluster.apply(*(claiming(f"p{number}", namespace, p4d) for number in range(SLICES)))
        wait_for_phases(cluster, namespace, Running=SLICES)
        said = wait_for("each pod has said its slice", lambda: _said(cluster, namespace, SLICES))
        assert len(set(said)) == SLICES
        assert all(line.startswith("UUID: MIG-") for line in said)
        profiles = Counter(grant["profile"] for share in shares(p4d) for grant in share["grants"])
        assert profiles == {"1g.5gb": SLICES}
        seconds = prepared_seconds(agent)
        p50, p99 = (1000 * seconds[round(share * (len(seconds) - 1))] for share in (0.5, 0.99))
        record_property(
            "figure",
            f"{SLICES} claims at once, each prepared in p50 {p50:.1f} ms, p99 {p99:.1f} ms beside what NVML takes",
        )
        print(f"prepared: p50 {p50:.1f} ms, p99 {p99:.1f} ms, of {len(seconds)}")

        cluster.apply(*(claiming(f"q{number}", namespace, p4d) for number in range(44)))
        wait_for_phases(cluster, namespace, Running=SLICES, Pending=44)
        changes = p4d.machine.total_change_calls()
        cluster.kubectl("delete", "pod", "--namespace", namespace, *(f"p{number}" for number in range(44)))
        wait_for_phases(cluster, namespace, Running=SLICES)
        assert p4d.machine.total_change_calls() == changes, "slices are used again"
        gone(cluster, p4d, namespace)


def test_small_and_large_come_and_go_on_the_fly(cluster: Cluster, p4d: Node, namespace: str) -> None:
    with claims_on(cluster, p4d):
        cluster.apply(
            claim_template("small", namespace, requests={"memory": "4Gi"}),
            claim_template("large", namespace, device_class="7g-40gb.gpu.tranche.dev"),
            claim_template("whole", namespace, device_class="whole.gpu.tranche.dev"),
        )
        cluster.apply(*(claiming(f"s{number}", namespace, p4d, "small") for number in range(4)))
        wait_for_phases(cluster, namespace, Running=4)
        before = {each["metadata"]["uid"] for each in pods_in(cluster, namespace)}
        cluster.apply(
            *(claiming(f"l{number}", namespace, p4d, "large") for number in range(3)),
            claiming("w", namespace, p4d, "whole"),
        )
        wait_for_phases(cluster, namespace, Running=8)
        assert before <= {each["metadata"]["uid"] for each in pods_in(cluster, namespace)}
        held = [device for claim in claims_in(cluster, namespace) for device in devices_given(claim)]
        assert len(held) == len(set(held)) == 8
        keepers = {f"{share['keeper']['name']}" for share in shares(p4d)}
        assert keepers == {each["metadata"]["name"] for each in claims_in(cluster, namespace)}
        gone(cluster, p4d, namespace)


def _said(cluster: Cluster, namespace: str, count: int) -> list[str]:
    """The first line of each running pod, once all have said theirs."""
    lines = [line for line in first_lines(cluster, namespace).values() if line]
    return lines if len(lines) == count else []
