"""A real API server and scheduler take the placer's patch: a gated pod goes to the node that was chosen, and nowhere before."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.node_layouts import labels
from cluster.waiting import wait_for
from cluster.workloads import phase, pod

from tests.cluster.conftest import node_of
from tranche.core.allocation import WholeGpu
from tranche.kubernetes.claims.vocabulary import SHARE_GATE
from tranche.kubernetes.gated.leases import ChosenShare
from tranche.kubernetes.gated.scheduler.cluster_pods import HOST_LABEL
from tranche.kubernetes.gated.scheduler.placer import choice_text, ungating

pytestmark = pytest.mark.cluster


def test_a_gated_pod_goes_where_it_was_placed_and_not_before(cluster: Cluster, p4d: Node, namespace: str) -> None:
    node_of(cluster, "bare", "")
    gated = pod("gated", namespace)
    gated["spec"]["schedulingGates"] = [{"name": SHARE_GATE}]
    cluster.apply(gated)
    path = f"/api/v1/namespaces/{namespace}/pods/gated"
    raw = cluster.api.get(path)
    assert "nodeName" not in raw["spec"]
    choice = ChosenShare(namespace, "gated", raw["metadata"]["uid"], (WholeGpu("GPU-1"),))

    def patch(of: ChosenShare) -> None:
        change = json.dumps(ungating(raw, p4d.name, labels(cluster, p4d)[HOST_LABEL], of))
        cluster.kubectl("patch", "pod", "gated", f"--namespace={namespace}", "--type=json", f"--patch={change}")

    with pytest.raises(ClusterError):
        patch(replace(choice, uid="another"))
    assert cluster.api.get(path)["spec"]["schedulingGates"] == [{"name": SHARE_GATE}]
    patch(choice)
    wait_for("the pod runs", lambda: phase(cluster, namespace, "gated") == "Running")
    bound = cluster.api.get(path)
    assert bound["spec"]["nodeName"] == p4d.name
    assert bound["metadata"]["annotations"][SHARE_GATE] == choice_text(p4d.name, choice)
    # A second controller that thinks the same finds the gate gone.
    with pytest.raises(ClusterError):
        patch(choice)
