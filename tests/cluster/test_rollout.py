"""Two nodes take turns on a real API server, and stop at the one that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from cluster.agents import NAMESPACE, AgentPod, agent_on, install_rights
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import (
    condition,
    label,
    labels,
    remove_layouts,
    wait_for_slices,
    wait_for_state,
    write_layouts,
)
from cluster.waiting import wait_for

from tranche.kubernetes.rollout.leadership import LEADER_LEASE

pytestmark = pytest.mark.cluster

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
OPTIONS = ("--max-unavailable=50%", "--mig-strategy=single")
LAYOUTS = """
version: v1
mig-configs:
  shared:
    - {{devices: all, device-filter: "0x20B010DE", mig-enabled: true, mig-devices: {{{a100}}}}}
    - {{devices: all, device-filter: "0x233010DE", mig-enabled: true, mig-devices: {{{h100}}}}}
"""


@contextmanager
def taking_turns(cluster: Cluster, *nodes: Node) -> Iterator[list[AgentPod]]:
    """Agents that let one node change at a time; the machines are new afterwards."""
    install_rights(cluster)
    write_layouts(cluster, LAYOUTS.format(a100="1g.5gb: 7", h100="1g.10gb: 7"))
    try:
        with ExitStack() as agents:
            yield [agents.enter_context(agent_on(cluster, node, *OPTIONS)) for node in nodes]
    finally:
        for node in nodes:
            label(cluster, node, None)
            node.renew_machine()
        remove_layouts(cluster)


def led(cluster: Cluster) -> bool:
    """Whether a node decides on the order of all. Leases of other parts, of agents that have ended, stay in the namespace."""
    return LEADER_LEASE in [each["metadata"]["name"] for each in cluster.api.get(LEASES)["items"]]


def tickets(cluster: Cluster) -> dict[str, str]:
    """What each node's ticket says."""
    items = cluster.api.get(f"{LEASES}?labelSelector=tranche.dev/rollout=ticket")["items"]
    return {item["metadata"]["annotations"]["tranche.dev/node"]: item["spec"]["holderIdentity"] for item in items}


@pytest.mark.long
def test_an_edit_reaches_one_node_after_the_other_and_stops_at_one_that_fails(
    cluster: Cluster, p4d: Node, p5: Node, namespace: str
) -> None:
    with taking_turns(cluster, p4d, p5):
        for node in (p4d, p5):
            label(cluster, node, "shared")
        for node in (p4d, p5):
            wait_for_state(cluster, node, "success")
        wait_for("nobody leads when nobody waits", lambda: not led(cluster) and not tickets(cluster))
        p4d.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", 999, calls=1_000_000)
        write_layouts(cluster, LAYOUTS.format(a100="3g.20gb: 2", h100="1g.10gb: 7"))
        wait_for_state(cluster, p4d, "failed", "HardwareError")
        wait_for("its ticket says so", lambda: tickets(cluster) == {"p4d": "failed"})
        write_layouts(cluster, LAYOUTS.format(a100="3g.20gb: 2", h100="3g.40gb: 2"))
        wait_for_state(cluster, p5, "pending", "WaitingForTurn")
        wait_for(
            "the node says who holds it up",
            lambda: "the rollout is held up: node p4d failed" in condition(cluster, p5)["message"],
            explain=lambda: str(condition(cluster, p5)),
        )
        # The failed node tries again by itself after five seconds, and is changing for that moment.
        wait_for("one has failed, one waits", lambda: tickets(cluster) == {"p4d": "failed", "p5": "waiting"})
        wait_for_slices(cluster, p5, gpu=56)
        cluster.kubectl("annotate", "lease", f"--namespace={NAMESPACE}", "tranche-layout.p4d", "tranche.dev/go-on=yes")
        wait_for_state(cluster, p5, "success")
        wait_for_slices(cluster, p5, gpu=16)
        assert labels(cluster, p4d)["nvidia.com/mig.config.state"] == "failed"
        p4d.machine.clear_injections()
        label(cluster, p4d, "all-disabled")
        wait_for_state(cluster, p4d, "success")
        wait_for("no ticket is left", lambda: not tickets(cluster))
