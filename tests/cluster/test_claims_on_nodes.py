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
    DRIVER,
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
from cluster.workloads import first_lines, phases, pod, pods_in

pytestmark = pytest.mark.cluster

TRANCHE = str(Path(sys.executable).with_name("tranche"))
LOOK = "nvidia-smi -L | grep -o 'UUID: [^)]*' | tail -n 1; trap exit TERM; while :; do sleep 1; done"
SLICES = 56


@contextmanager
def claims_on(cluster: Cluster, node: Node, mode: str = "dynamic", *options: str) -> Iterator[AgentPod]:
    """The agent on a node whose GPUs are given away by claims; they are new afterwards."""
    give_by_claims(cluster, node, mode)
    try:
        with agent_on(cluster, node, "--with-dra", "--without=feature-labels", *options) as agent:
            wait_for("the node's devices are shown", lambda: devices_published(cluster, node), timeout=60)
            yield agent
    finally:
        give_by_claims(cluster, node, None)
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
    cluster.kubectl("delete", "pods", "--all", "--namespace", namespace, "--wait=false")
    wait_for("the pods are gone", lambda: not pods_in(cluster, namespace), timeout=180)
    wait_for("the claims are gone", lambda: not claims_in(cluster, namespace), timeout=60)
    wait_for("the register is empty", lambda: not shares(node), timeout=60, explain=lambda: str(shares(node)))
    files = [path.name for path in node.paths.cdi.iterdir() if "share" in path.name]
    assert not files


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
            claim_template("large", namespace, device_class="tranche-7g-40gb"),
            claim_template("whole", namespace, device_class="tranche-whole"),
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


def plant(cluster: Cluster, namespace: str, name: str, node: Node, device: str, pool: str) -> None:
    """Do what a scheduler with a defect might do: give a claim that device, and bind its pod to the node."""
    body = pod(name, namespace, script=LOOK)
    body["spec"] |= {
        "schedulerName": "nobody",
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "tranche"}}]
    claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    pods = f"/api/v1/namespaces/{namespace}/pods"
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    cluster.api.request("POST", claims, {**claim, "spec": {"devices": {"requests": requests}}})
    uid = cluster.api.request("POST", pods, body)["metadata"]["uid"]
    results = [{"request": "gpu", "driver": DRIVER, "pool": pool, "device": device}]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": uid}],
    }
    cluster.api.merge(f"{claims}/{name}/status", {"status": status})
    target = {"apiVersion": "v1", "kind": "Node", "name": node.name}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    cluster.api.request("POST", f"{pods}/{name}/binding", binding)


def warnings(cluster: Cluster, namespace: str, name: str) -> str:
    """What the kubelet says of a pod that it cannot start."""
    items = cluster.api.get(f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}")["items"]
    return "\n".join(each["message"] for each in items if each["reason"] == "FailedPrepareDynamicResources")


def test_what_a_scheduler_got_wrong_is_refused_in_the_pods_events(cluster: Cluster, p4d: Node, namespace: str) -> None:
    with claims_on(cluster, p4d):
        cluster.apply(claim_template("gpu", namespace, requests={"memory": "4Gi"}))
        cluster.apply(claiming("neighbour", namespace, p4d))
        wait_for_phases(cluster, namespace, Running=1)
        (claim,) = claims_in(cluster, namespace)
        (device,) = devices_given(claim)
        gpu = device.removesuffix(device[device.index("-1g") :])
        calls = p4d.machine.total_change_calls()
        planted = {
            "overlap": (gpu, p4d.name, f"overlaps what claim {namespace}/{claim['metadata']['name']} holds"),
            "unknown": ("gpu-0-1g-5gb-9", p4d.name, "which this node does not have"),
            "elsewhere": ("gpu-0", "another", "is allocated in pool another"),
        }
        for name, (wrong, pool, _) in planted.items():
            plant(cluster, namespace, name, p4d, wrong, pool)
        for name, (_, _, reason) in planted.items():
            _wait_for_reason(cluster, namespace, name, reason)
        assert p4d.machine.total_change_calls() == calls
        assert phases(cluster, namespace)["Running"] == 1
        # The neighbour ends, and the kubelet asks again.
        cluster.kubectl("delete", "pod", "neighbour", "--namespace", namespace)
        wait_for("the refused pod runs", lambda: phases(cluster, namespace)["Running"] == 1, timeout=240)
        for name in planted:
            cluster.kubectl("delete", "resourceclaim", name, "--namespace", namespace, "--wait=false")
        gone(cluster, p4d, namespace)


def _wait_for_reason(cluster: Cluster, namespace: str, name: str, reason: str) -> None:
    def told() -> bool:
        return reason in warnings(cluster, namespace, name)

    def explain() -> str:
        return cluster.kubectl("describe", "pod", name, "--namespace", namespace)

    wait_for(f"the events of {name} say why", told, timeout=60, explain=explain)
