"""A cluster that gives shares by gates from now on: what its kubelets have by claims ends as it always did."""

from __future__ import annotations

import pytest
from cluster.agents import agent_on, install_rights, remove_device_classes
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for

from tests.cluster.test_node_modes import SLICES, offered, runs, set_mode, start

pytestmark = pytest.mark.cluster

OPTIONS = ("--mig-strategy=mixed", "--with-dra", "--refresh-seconds=0.3")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_pod_with_a_claim_ends_after_the_change(cluster: Cluster, p4d: Node, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    set_mode(cluster, p4d, "dynamic")
    try:
        with agent_on(cluster, p4d, *OPTIONS):
            start(cluster, namespace, "by-claim", p4d, slice=1)
            runs(cluster, namespace, "by-claim")
        # Nobody chooses here, so that the agent is not ready: it cannot tell of its GPUs.
        with agent_on(cluster, p4d, *OPTIONS, "--tier=gates", wait=False):
            wait_for("claims are shown nothing", lambda: not offered(cluster))
            cluster.api.delete(f"{pods}/by-claim")
            wait_for("the pod has ended", lambda: not cluster.api.get(pods)["items"])
    finally:
        set_mode(cluster, p4d, None)
        cluster.api.delete_all(SLICES)
        remove_device_classes(cluster)
        p4d.renew_machine()
        install_rights(cluster)
