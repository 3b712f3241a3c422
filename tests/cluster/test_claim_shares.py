"""Claims on a GPU without MIG: pods share it by MPS, each within what its claim consumes of the card."""

from __future__ import annotations

from typing import Any

import pytest
from cluster.claims import claim_template, claims_in, devices_given, with_claim
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.tenants import given, tenants
from cluster.waiting import wait_for
from cluster.workloads import pod, pods_in

from tests.cluster.test_claims_on_nodes import claims_on, gone, shares, wait_for_phases
from tests.cluster.test_virtual_gpus import daemons, wait_until_all_compute

pytestmark = pytest.mark.cluster

MOST_MIB = 4096
LEAST_MIB = 3500
"""CUDA's context takes the rest, and programs take 64 MiB at a time."""


def test_pods_with_claims_compute_on_one_card_within_their_limits(cluster: Cluster, g4dn: Node, namespace: str) -> None:
    with claims_on(cluster, g4dn, "shared", "--share-by-mps", "--stand-by") as agent:
        cluster.apply(
            claim_template("part", namespace, requests={"memory": "4Gi"}),
            claim_template("whole", namespace, device_class="whole.gpu.tranche.dev"),
        )
        cluster.apply(tenants("busy", namespace, 2, claim="part"))
        wait_for_phases(cluster, namespace, Running=2)
        wait_until_all_compute(cluster, namespace)
        wait_until_each_has(cluster, namespace, 2)
        before, serving = programs(cluster, namespace), daemons(g4dn)
        assert len(serving) == 2, "one daemon and its server for both"

        # A newcomer starts while one agent's pod takes over from the other, and who computes computes on.
        agent.with_options(*agent.options)
        cluster.kubectl("scale", "deployment", "busy", "--replicas=4", f"--namespace={namespace}")
        wait_for_phases(cluster, namespace, Running=3, Pending=1)
        wait_until_each_has(cluster, namespace, 3)
        assert before.items() <= programs(cluster, namespace).items(), "no program has failed"
        assert daemons(g4dn) == serving
        (device,) = {name for claim in claims_in(cluster, namespace) for name in devices_given(claim)}
        assert device.endswith("-shared")
        assert len(shares(g4dn)) == 3, "three times 4 GiB are all that a T4 has"

        cluster.kubectl("delete", "deployment", "busy", f"--namespace={namespace}")
        gone(cluster, g4dn, namespace)
        # The idle daemon makes room for who wants the card alone.
        cluster.apply(with_claim(pod("alone", namespace, node=g4dn.name), "whole"))
        wait_for_phases(cluster, namespace, Running=1)
        assert not daemons(g4dn)
        gone(cluster, g4dn, namespace)


def wait_until_each_has(cluster: Cluster, namespace: str, count: int) -> None:
    """Wait until so many tenants run and have said what they were let have: each the memory of its claim."""

    def told() -> list[int]:
        found = [given(cluster, namespace, each["metadata"]["name"]) for each in running(cluster, namespace)]
        return [each[0] for each in found if each is not None]

    wait_for("the tenants have their memory", lambda: len(told()) == count)
    assert all(LEAST_MIB < each <= MOST_MIB for each in told()), told()


def programs(cluster: Cluster, namespace: str) -> dict[str, str]:
    """The container of each running pod."""
    return {
        each["metadata"]["name"]: each["status"]["containerStatuses"][0]["containerID"]
        for each in running(cluster, namespace)
    }


def running(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """The pods that run."""
    return [each for each in pods_in(cluster, namespace) if each["status"]["phase"] == "Running"]
