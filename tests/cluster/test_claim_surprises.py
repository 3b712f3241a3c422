"""What befalls claims from outside: somebody edits one while its pod runs, and a node vanishes while it makes a slice for one."""

from __future__ import annotations

import os
import time

import pytest
from cluster.agents import NAMESPACE, AgentPod
from cluster.claims import claim_template, devices_published
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import phase, phases, pods_in

from tests.cluster.test_claim_defects import Neighbour, Planter
from tests.cluster.test_claims_on_nodes import claiming, claims_on, gone, shares, wait_for_phases

pytestmark = pytest.mark.cluster

WAIT_SECONDS = float(os.environ.get("TRANCHE_CLAIM_FALLEN_SECONDS", "0"))
"""For how long the API server says that a claim is over: after 30 and a look, whatever nobody uses is free."""


@pytest.mark.long
def test_a_claim_that_somebody_edits_while_its_pod_runs_keeps_what_it_was_given(
    cluster: Cluster, p4d: Node, namespace: str
) -> None:
    planter = Planter(cluster, p4d, namespace)
    with claims_on(cluster, p4d):
        neighbour = Neighbour.begin(planter)
        number = 1 if neighbour.gpu == "gpu-0" else 0
        given, other = f"gpu-{number}-3g-20gb-0", f"gpu-{number}-3g-20gb-4"
        planter.plant("edited", given)
        wait_for("it runs", lambda: phase(cluster, namespace, "edited") == "Running")
        saw, held = planter.saw("edited"), {str(each["grants"]) for each in shares(p4d)}

        # The API server lets nobody change an allocation, but takes one away and takes another.
        path = f"{planter.claims}/edited/status"
        user = cluster.api.get(f"{planter.pods}/edited")["metadata"]["uid"]
        cluster.api.merge(path, {"status": {"allocation": None, "reservedFor": None}})
        planter.plant("thief", given)
        planter.wait_for_reason("thief", f"overlaps what claim {namespace}/edited holds")
        planter.allocate("edited", other, {"edited": user})
        p4d.kill9("kubelet")
        p4d.start_component("kubelet")
        p4d.wait_until_ready(cluster.api)
        assert (planter.saw("edited"), {str(each["grants"]) for each in shares(p4d)}) == (saw, held)
        assert phases(cluster, namespace)["Running"] == 2

        planter.delete("edited", "thief")
        gone(cluster, p4d, namespace)


@pytest.mark.long
def test_a_pod_that_deletes_its_claim_and_empties_its_environment_keeps_its_slice_alone(
    cluster: Cluster, p4d: Node, namespace: str
) -> None:
    script = "exec env -i /bin/sh -c 'trap : TERM; sleep 1000000 & wait; exit 0'"
    planter, device = Planter(cluster, p4d, namespace, script), "gpu-0-1g-5gb-0"
    with claims_on(cluster, p4d):
        planter.plant("quiet", device)
        wait_for("it runs", lambda: phase(cluster, namespace, "quiet") == "Running")
        cluster.api.delete(f"{planter.claims}/quiet")
        wait_for("others are kept from it", lambda: device in _tainted(cluster, p4d))
        time.sleep(WAIT_SECONDS)
        assert phase(cluster, namespace, "quiet") == "Running"
        planter.plant("thief", device)
        planter.wait_for_reason("thief", f"overlaps what claim {namespace}/quiet holds")
        planter.delete("thief", "quiet")
        gone(cluster, p4d, namespace)


def test_a_node_that_vanishes_while_it_makes_a_slice_comes_back_with_nothing_given(
    cluster: Cluster, p4d: Node, namespace: str
) -> None:
    with claims_on(cluster, p4d) as agent:
        cluster.apply(claim_template("gpu", namespace, device_class="2g-10gb.gpu.tranche.dev"))
        p4d.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 60.0)
        cluster.apply(claiming("lost", namespace, p4d))
        wait_for("its slice is promised", lambda: [each["phase"] for each in shares(p4d)] == ["preparing"])
        p4d.power_off()
        # Whoever looks after the cluster gives the pod up, and the claim with it.
        cluster.kubectl("delete", "pod", "lost", "--namespace", namespace, "--force", "--grace-period=0")
        p4d.machine.clear_injections()
        p4d.reboot(cluster.api)
        # A pod that comes before the driver is registered again waits until the kubelet tries once more.
        wait_for("the agent is ready again", lambda: _ready_elsewhere(agent), timeout=180)
        wait_for("nothing is promised any more", lambda: not shares(p4d))
        wait_for("the pod is gone", lambda: not pods_in(cluster, namespace))
        wait_for("all can be had", lambda: not _tainted(cluster, p4d))
        cluster.apply(claiming("next", namespace, p4d))
        wait_for_phases(cluster, namespace, Running=1)
        gone(cluster, p4d, namespace)


def _ready_elsewhere(agent: AgentPod) -> bool:
    """Whether the agent's pod is ready under another address: it has a sandbox of the new boot."""
    status = agent.cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{agent.name}")["status"]
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status["conditions"])
    return ready and status.get("podIP") not in (None, agent.address)


def _tainted(cluster: Cluster, node: Node) -> set[str]:
    """Slices that cannot be had."""
    shown = devices_published(cluster, node).items()
    return {name for name, each in shown if each.get("taints") and not name.endswith("-shared")}
