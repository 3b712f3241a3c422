"""A real API server and scheduler take the placer's patch: a gated pod goes to the node that was chosen, and nowhere before."""

from __future__ import annotations

import json

import pytest
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.node_layouts import labels
from cluster.waiting import wait_for
from cluster.workloads import phase, pod

from tests.cluster.conftest import node_of
from tranche.core.allocation import WholeGpu
from tranche.core.request import Request, WholeGpus
from tranche.kubernetes.controller.placer import GATE, GatedPod, PodPlacement, choice_text, ungating
from tranche.planning.allocate import Granted
from tranche.planning.plan import Plan

pytestmark = pytest.mark.cluster


def test_a_gated_pod_goes_where_it_was_placed_and_not_before(cluster: Cluster, p4d: Node, namespace: str) -> None:
    node_of(cluster, "bare", "")
    gated = pod("gated", namespace)
    gated["spec"]["schedulingGates"] = [{"name": GATE}]
    cluster.apply(gated)
    path = f"/api/v1/namespaces/{namespace}/pods/gated"
    raw = cluster.api.get(path)
    assert "nodeName" not in raw["spec"]
    whole = Granted((WholeGpu("GPU-1"),), Plan("nothing", (), {}), "whole", "")
    meta = raw["metadata"]
    placement = PodPlacement(GatedPod(namespace, "gated", meta["uid"], Request(WholeGpus(1))), p4d.name, whole)

    def patch(of: PodPlacement) -> None:
        change = json.dumps(ungating(raw, of, labels(cluster, p4d)))
        cluster.kubectl("patch", "pod", "gated", f"--namespace={namespace}", "--type=json", f"--patch={change}")

    other = PodPlacement(GatedPod(namespace, "gated", "another", Request(WholeGpus(1))), p4d.name, whole)
    with pytest.raises(ClusterError):
        patch(other)
    assert cluster.api.get(path)["spec"]["schedulingGates"] == [{"name": GATE}]
    patch(placement)
    wait_for("the pod runs", lambda: phase(cluster, namespace, "gated") == "Running")
    bound = cluster.api.get(path)
    assert bound["spec"]["nodeName"] == p4d.name
    assert bound["metadata"]["annotations"][GATE] == choice_text(placement)
    # A second controller that thinks the same finds the gate gone.
    with pytest.raises(ClusterError):
        patch(placement)
