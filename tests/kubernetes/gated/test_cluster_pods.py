"""Pods and nodes as the placer reads them, the gate that the webhook gives, and second tries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.kubernetes.claims.examples import REQUESTS
from tests.kubernetes.webhook.json_patch import patched
from tranche.core.allocation import NodeView, WholeGpu
from tranche.core.errors import UsageError
from tranche.core.state import NodeState
from tranche.kubernetes.api.node_rules import Requirement, Toleration
from tranche.kubernetes.claims.annotations import annotations_of, pod_demand
from tranche.kubernetes.fleet.objects import decode_fleet_node
from tranche.kubernetes.gated.leases import ChoiceLease, ChosenShare, NodeGpus
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod, decode_cluster_pod
from tranche.kubernetes.gated.scheduler.placer import ClusterState, why_not
from tranche.kubernetes.gated.scheduler.placing import (
    AVOIDED_SECONDS,
    REFUSED_SECONDS,
    UNBOUND_SECONDS,
    RetryHistory,
)
from tranche.kubernetes.webhook.injection import gating

SHARE = "tranche.dev/share"


def raw_pod(**spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {SHARE: "1"}}}
    return {
        "metadata": {"namespace": "team", "name": "p", "uid": "u1", "annotations": {"tranche.dev/gpu-memory": "4Gi"}},
        "spec": {"containers": [container], "schedulingGates": [{"name": SHARE}], **spec},
    }


def test_a_pod_that_waits_is_read_with_its_rules() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    init = [
        {"name": "first", "resources": {"requests": {"cpu": "4"}}},
        {"name": "beside", "restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}},
    ]
    pod = decode_cluster_pod(
        raw_pod(
            affinity=affinity,
            initContainers=init,
            overhead={"memory": "1Mi"},
            tolerations=[{"key": "gpu", "operator": "Exists"}],
            priority=5,
        )
    )
    assert pod.request is not None
    assert pod.needs == {"cpu": 4000, "memory": 1025 * 1024**2, SHARE: 1, "pods": 1}
    assert pod.terms == ((Requirement("zone", "In", ("a",)),),)
    assert pod.tolerations == (Toleration("gpu", exists=True),)
    assert (pod.priority, str(pod.request)) == (5, "--gpu-memory 4Gi")


def test_what_a_claim_serves_takes_nothing_of_what_the_node_counts() -> None:
    raw = raw_pod()
    raw["spec"]["containers"][0]["resources"]["limits"] |= {"nvidia.com/gpu": "2", "example.com/nic": "1"}
    mapped = [{"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}]
    raw["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": mapped}}
    needs = decode_cluster_pod(raw).needs
    assert (needs.get("nvidia.com/gpu"), needs["example.com/nic"]) == (None, 1)


def asking(name: str, amount: str = "1", **more: str) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {SHARE: amount}}, **more}


def test_a_share_may_be_handed_to_a_container_beside_the_others() -> None:
    beside = asking("beside", restartPolicy="Always")
    pod = decode_cluster_pod(raw_pod(containers=[{"name": "main"}], initContainers=[beside]))
    assert (pod.wrong, pod.never) == ("", "")
    assert pod.request is not None


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"schedulingGates": [{"name": SHARE}, {"name": "kueue"}]}, ""),
        ({"schedulingGates": []}, ""),
        ({"containers": [{"name": "main"}]}, "no container requests tranche.dev/share"),
        ({"containers": [asking("main", "0")]}, "no container requests tranche.dev/share"),
        ({"containers": [asking("main", "2")]}, "container 'main' requests 2 of tranche.dev/share"),
        ({"containers": [asking("main"), asking("side", "2")]}, "container 'side' requests 2"),
        (
            {"containers": [{"name": "main"}], "initContainers": [asking("first")]},
            "init container 'first' requests tranche.dev/share",
        ),
        ({"initContainers": [asking("first")]}, "init container 'first' requests tranche.dev/share"),
    ],
)
def test_a_pod_that_cannot_be_placed_is_left_alone(change: dict[str, Any], wrong: str) -> None:
    pod = decode_cluster_pod(raw_pod(**change))
    assert pod.request is None
    assert wrong in pod.wrong
    assert bool(wrong) == bool(pod.wrong)


def test_a_pod_without_a_demand_says_so() -> None:
    raw = raw_pod()
    raw["metadata"]["annotations"] = {}
    assert "no annotation requests one" in decode_cluster_pod(raw).wrong
    raw["metadata"]["annotations"] = {"tranche.dev/gpu": "much"}
    assert "much" in decode_cluster_pod(raw).wrong


def test_a_node_is_read_with_what_it_has() -> None:
    node = decode_fleet_node(
        {
            "metadata": {"name": "n1", "uid": "x", "labels": {"kubernetes.io/hostname": "host-1"}},
            "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": {"cpu": "3900m", SHARE: "250"},
            },
        }
    )
    assert (ClusterState(nodes={"n1": node}).host("n1"), node.allocatable) == ("host-1", {"cpu": 3900, SHARE: 250})
    pod = decode_cluster_pod(raw_pod())
    assert pod.request is not None
    assert "taint gpu" in why_not(pod, node)
    assert "not ready" in why_not(pod, decode_fleet_node({"metadata": {"name": "n1"}}))


def test_the_gate_and_the_resource_are_given_once() -> None:
    raw = raw_pod(schedulingGates=[{"name": "kueue"}], schedulerName="kai-scheduler")
    del raw["spec"]["containers"][0]["resources"]["limits"]
    demand = pod_demand(raw["metadata"]["annotations"])
    assert demand is not None
    first = gating(raw, demand, ["kai-scheduler"])
    done = patched(raw, first)
    assert done["spec"]["schedulingGates"] == [{"name": "kueue"}, {"name": SHARE}]
    assert done["spec"]["schedulerName"] == "default-scheduler"
    assert done["spec"]["containers"][0]["resources"]["limits"] == {SHARE: "1"}
    assert done["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1500m"
    assert gating(done, demand, ["kai-scheduler"]) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodeName": "n1"}, "sets nodeName"),
        ({"initContainers": [{"name": "main"}], "containers": [{"name": "other"}]}, "init container"),
        ({"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, "nvidia.com/gpu"),
    ],
)
def test_what_cannot_be_gated_is_refused(change: dict[str, Any], words: str) -> None:
    raw = raw_pod(**change)
    demand = pod_demand({"tranche.dev/gpu": "0.5", "tranche.dev/container": "main"})
    assert demand is not None
    with pytest.raises(UsageError, match=words):
        gating(raw, demand)


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_request_is_the_same_after_its_annotations(request_: Any) -> None:
    demand = pod_demand({**annotations_of(request_), SHARE: "{}"})
    assert demand is not None
    assert demand.request == request_


def test_a_pod_that_does_not_start_is_made_anew_once_and_elsewhere() -> None:
    choice = ChosenShare("team", "p", "u1", (WholeGpu("GPU-1"),))
    pod = ClusterPod("team", "p", "u1", pinned="n1", job="j1")
    now = ClusterState({"u1": pod}, {}, {}, {"n1": ChoiceLease("n1", {"u1": choice})})
    tries = RetryHistory().look(now, 0.0)
    assert not tries.look(now, UNBOUND_SECONDS - 1).due(UNBOUND_SECONDS - 1)
    tries = tries.look(now, UNBOUND_SECONDS)
    assert tries.due(UNBOUND_SECONDS) == {"u1": "unbound"}
    tries = tries.made_anew("u1", UNBOUND_SECONDS)
    after = ClusterState({"u2": replace(pod, uid="u2", waits=True)})
    assert tries.avoided(after, UNBOUND_SECONDS + 1) == {"u2": frozenset({"n1"})}
    assert not tries.avoided(after, UNBOUND_SECONDS + AVOIDED_SECONDS + 1)
    # One that runs, or that no job of ours makes anew, is left alone; one that its node refuses is not.
    bound = replace(pod, node="n1")
    assert not RetryHistory().look(replace(now, pods={"u1": bound}), 0.0).since
    assert not RetryHistory().look(replace(now, pods={"u1": replace(pod, job="")}), 0.0).since
    refusing = {"n1": NodeGpus("n1", NodeView(NodeState(())), 1, {"u1": "it is taken"})}
    refused = replace(now, pods={"u1": bound}, gpus=refusing)
    assert RetryHistory().look(refused, 0.0).due(REFUSED_SECONDS) == {"u1": "refused"}
