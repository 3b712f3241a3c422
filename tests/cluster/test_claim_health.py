"""A GPU that is lost, or that reports an error, under a pod with a claim: the pod's status and the node's devices say so."""

from __future__ import annotations

import pytest
from cluster.claims import claim_template, claims_in, devices_given, devices_published
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for

from tests.cluster.test_claims_on_nodes import claiming, claims_on, gone, wait_for_phases

pytestmark = pytest.mark.cluster


def health(cluster: Cluster, namespace: str, name: str) -> list[str]:
    """What the pod's status says of the health of its claim's devices."""
    status = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
    (container,) = status["containerStatuses"]
    told = container.get("allocatedResourcesStatus") or ()
    return [each["health"] for resource in told for each in resource.get("resources") or ()]


def taints(cluster: Cluster, node: Node, device: str) -> set[str]:
    """The keys of the device's taints."""
    return {each["key"] for each in devices_published(cluster, node)[device].get("taints") or ()}


def test_a_pod_and_the_scheduler_hear_of_a_gpu_that_is_lost_comes_back_and_fails(
    cluster: Cluster, p4d: Node, namespace: str
) -> None:
    with claims_on(cluster, p4d, "dynamic", "--refresh-seconds=0.5"):
        cluster.apply(claim_template("gpu", namespace, requests={"memory": "4Gi"}), claiming("a", namespace, p4d))
        wait_for_phases(cluster, namespace, Running=1)
        ((device,),) = map(devices_given, claims_in(cluster, namespace))
        gpu = int(device.split("-")[1])

        def shown(word: str, taint: str = "") -> bool:
            found = taints(cluster, p4d, device)
            return health(cluster, namespace, "a") == [word] and found == ({taint} if taint else set())

        def explain() -> str:
            return f"{health(cluster, namespace, 'a')} {taints(cluster, p4d, device)}"

        wait_for("it is well", lambda: shown("Healthy"), explain=explain)
        p4d.machine.inject_lost(gpu)
        wait_for("it is lost", lambda: shown("Unhealthy", "tranche.dev/lost"), explain=explain)
        assert not taints(cluster, p4d, f"gpu-{(gpu + 1) % 8}")
        p4d.machine.inject_lost(gpu, lost=False)
        wait_for("it has come back", lambda: shown("Healthy"), explain=explain)
        p4d.machine.inject_xid(gpu, 79)
        wait_for("it is faulty", lambda: shown("Unhealthy", "tranche.dev/faulty"), explain=explain)
        assert devices_given(claims_in(cluster, namespace)[0]) == [device], "who has it keeps it"
        gone(cluster, p4d, namespace)
