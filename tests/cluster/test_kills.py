"""kill -9 of the agent, the kubelet, containerd and the API server at random instants of layouts and deployments."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest
from cluster.agents import AgentPod, agent_on
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import label, labels, node_object, wait_for_slices, wait_for_state
from cluster.waiting import wait_for
from cluster.workloads import FOREVER, SHOW_DEVICES, deployment, first_lines, phases

pytestmark = pytest.mark.cluster

KILLS = int(os.environ.get("TRANCHE_KILLS", "16"))
"""How many, a quarter of them of each component; TRANCHE_KILLS asks for more."""

COMPONENTS = ("agent", "kubelet", "containerd", "kube-apiserver")
PODS = 10
LAYOUTS: list[tuple[str, str, dict[str, int]]] = [
    ("all-1g.5gb", "nvidia.com/mig-1g.5gb", {"mig_1g_5gb": 56}),
    ("all-3g.20gb", "nvidia.com/mig-3g.20gb", {"mig_3g_20gb": 16}),
    ("all-balanced", "nvidia.com/mig-1g.5gb", {"mig_1g_5gb": 16, "mig_2g_10gb": 8, "mig_3g_20gb": 8}),
]
OPERAND = "nvidia.com/gpu.deploy.dcgm"


@pytest.mark.long
def test_every_layout_and_every_pod_comes_through_kills_at_random_instants(
    cluster: Cluster, p4d: Node, namespace: str, record_property: Callable[[str, object], None]
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # pytest shows it with a failure
    rng = random.Random(seed)
    victims = [victim for _ in range(KILLS // 4) for victim in COMPONENTS]
    rng.shuffle(victims)
    try:
        with agent_on(cluster, p4d, "--mig-strategy=mixed") as agent:
            cluster.kubectl("label", "node", p4d.name, f"{OPERAND}=true")
            for number in range(KILLS // 2):
                layout, resource, offered = LAYOUTS[number % len(LAYOUTS)]
                label(cluster, p4d, layout)
                agent = _kill(cluster, p4d, agent, victims.pop(), after=rng.uniform(0, 1.5))
                wait_for_state(cluster, p4d, "success")
                wait_for_slices(cluster, p4d, **offered)
                cluster.apply(
                    deployment("work", namespace, PODS, script=f"{SHOW_DEVICES}; {FOREVER}", limits={resource: 1})
                )
                agent = _kill(cluster, p4d, agent, victims.pop(), after=rng.uniform(0, 3))
                _wait_for_pods(cluster, namespace, {"Running": PODS})
                _check_nothing_is_shared(cluster, namespace)
                assert labels(cluster, p4d)[OPERAND] == "true"
                assert "operands-paused" not in str(node_object(cluster, p4d)["metadata"]["annotations"])
                # The next layout is asked for while these still end.
                cluster.kubectl("delete", "deployment", "work", "--namespace", namespace)
            _wait_for_pods(cluster, namespace, {})
        record_property("crashes", KILLS)
    finally:
        cluster.kubectl("label", "node", p4d.name, f"{OPERAND}-")
        label(cluster, p4d, None)
        p4d.renew_machine()


def _kill(cluster: Cluster, node: Node, agent: AgentPod, victim: str, *, after: float) -> AgentPod:
    """SIGKILL it at that instant, and have it run again; the agent that runs then."""
    print(f"kill {victim} after {after:.2f} s")
    time.sleep(after)
    if victim == "agent":
        agent.end()
        return agent.restarted()
    if victim == "kube-apiserver":
        cluster.kill9(victim)
        cluster.start_component(victim)
        wait_for("the API server answers", lambda: bool(cluster.api.get("/api/v1/nodes")["items"]))
    else:
        node.kill9(victim)
        node.start_component(victim)
    return agent


def _wait_for_pods(cluster: Cluster, namespace: str, expected: dict[str, int]) -> None:
    """Wait for exactly those; pods that failed while a component was away and were replaced do not count."""

    def living() -> bool:
        now = phases(cluster, namespace)
        return {phase: count for phase, count in now.items() if phase != "Failed"} == expected

    wait_for(f"pods: {expected}", living, timeout=300, explain=lambda: _listed(cluster, namespace))


def _listed(cluster: Cluster, namespace: str) -> str:
    return cluster.kubectl("get", "deployments,replicasets,pods", "--namespace", namespace)


def _check_nothing_is_shared(cluster: Cluster, namespace: str) -> None:
    # A kubelet that has just begun serves no logs yet.
    given = wait_for("each pod has said its slice", lambda: _given(cluster, namespace))
    assert len(set(given)) == len(given) == PODS, sorted(given)


def _given(cluster: Cluster, namespace: str) -> list[str]:
    """The slice of each running pod, once all have said theirs."""
    said = list(first_lines(cluster, namespace).values())
    return said if all(uuid.startswith("MIG-") for uuid in said) else []
