"""What a real API server lets the account of a cluster's page do, which acts for viewers whom a proxy names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cluster.claims import NODES, add_paper_node
from cluster.cluster import Cluster
from cluster.waiting import wait_for
from cluster.workloads import pod
from release.chart import render

from tests.cluster.bearer import Bearer

pytestmark = pytest.mark.cluster

RELEASE, NODE = "paged", "paper-paged"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
LAYOUT = "nvidia.com/mig.config"


@dataclass(frozen=True)
class Thief(Bearer):
    """Whoever has got hold of the token of the page's account."""

    def patches(self, patch: dict[str, Any], more: str = "") -> str:
        """What becomes of a merge patch of the node; `more` follows in its address."""
        return self.tries("PATCH", f"{NODES}/{NODE}{more}", patch)


@pytest.fixture
def thief(cluster: Cluster, namespace: str) -> Iterator[Thief]:
    """With a node that is on paper alone."""
    values = {
        "dashboard": {
            "enabled": True,
            "act": True,
            "from": [{"podSelector": {}}],
            "proxy": {"secretName": "s", "act": True},
        }
    }
    kinds = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
    kinds |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    made = [
        each
        for each in render(values, namespace=namespace, release=RELEASE)
        if each["kind"] in kinds and each["metadata"]["name"].startswith(f"{RELEASE}-tranche-agent-dashboard")
    ]
    account = next(each["metadata"]["name"] for each in made if each["kind"] == "ServiceAccount")
    cluster.apply(*made)
    try:
        add_paper_node(cluster.api, NODE, {"example.com/rack": "1"})
        asked = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        token = cluster.api.request("POST", asked, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        somebody = Thief(cluster.api, str(token))
        probe = {"metadata": {"labels": {"example.com/probe": None}}}
        wait_for("the account may patch", lambda: somebody.patches(probe) == "done")
        stray = {"metadata": {"annotations": {"example.com/probe": "1"}}}
        wait_for("the policy of nodes is in force", lambda: "denied request" in somebody.patches(stray, "?dryRun=All"))
        yield somebody
    finally:
        cluster.api.delete(f"{NODES}/{NODE}")
        for each in made:
            cluster.kubectl(
                "delete", each["kind"], each["metadata"]["name"], "--ignore-not-found", "--namespace", namespace
            )


def test_what_the_pages_account_may_do_for_others_is_what_its_pages_offer(
    cluster: Cluster, namespace: str, thief: Thief
) -> None:
    for kind in ("nodes", "pods"):
        checked = wait_for(f"the policy of {kind} is checked", lambda kind=kind: _checked(cluster, kind))  # type: ignore[misc]
        assert not checked["typeChecking"], checked
    for offered in (
        {"spec": {"unschedulable": True}},
        {"spec": {"unschedulable": None}},
        {"metadata": {"labels": {LAYOUT: "all-balanced"}}},
    ):
        assert thief.patches(offered) == "done"
    for other in (
        {"metadata": {"labels": {"example.com/tenant": "x"}}},
        {"metadata": {"labels": {"example.com/rack": "2"}}},
        {"metadata": {"labels": {"example.com/rack": None}}},
        {"metadata": {"labels": {LAYOUT: "all-disabled", "nvidia.com/mig.config.state": "success"}}},
        {"metadata": {"annotations": {"tranche.dev/mig.config.cordoned": "true"}}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {"spec": {"unschedulable": True, "taints": [{"key": "example.com/mine", "effect": "NoExecute"}]}},
        {"spec": {"providerID": "aws:///i-1"}},
    ):
        assert "denied request" in thief.patches(other), other
    assert thief.patches({"status": {"conditions": []}}, "/status").startswith("403")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    limits: dict[str, dict[str, int | str]] = {"gpu": {"nvidia.com/gpu": 1}, "share": {"tranche.dev/share": 1}}
    claiming = pod("claim", namespace)
    claiming["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "some"}]
    first = pod("first", namespace)
    first["spec"]["initContainers"] = [
        {**first["spec"]["containers"][0], "name": "before", "resources": {"limits": {"k8s.amazonaws.com/vgpu": 1}}}
    ]
    with_gpus = [*(pod(name, namespace, limits=limits[name]) for name in limits), claiming, first]
    plain = pod("plain", namespace, limits={"cpu": "1m", "example.com/nvidia.com": 1})
    for each in (*with_gpus, plain):
        # Nobody places it, so nothing runs and nothing has to end.
        cluster.api.request("POST", pods, {**each, "spec": {**each["spec"], "schedulerName": "nobody"}})
    assert "denied request" in wait_for(
        "the policy of pods is in force", lambda: _refusal(thief.tries("DELETE", f"{pods}/plain?dryRun=All"))
    )
    assert "denied request" in thief.tries("DELETE", f"{pods}/plain")
    for each in with_gpus:
        assert thief.tries("DELETE", f"{pods}/{each['metadata']['name']}") == "done"
    for method, path in (
        ("DELETE", pods),
        ("GET", f"/api/v1/namespaces/{namespace}/secrets"),
        ("POST", pods),
        ("POST", f"{pods}/plain/eviction"),
        ("DELETE", f"{NODES}/{NODE}"),
        ("GET", f"{pods}/plain/log"),
    ):
        assert thief.tries(method, path, {} if method == "POST" else None).startswith("403"), path
    assert [each["metadata"]["name"] for each in cluster.api.get(pods)["items"]] == ["plain"]


def _refusal(answer: str) -> str:
    return answer if answer != "done" else ""


def _checked(cluster: Cluster, kind: str) -> dict[str, Any]:
    """What the API server says of the policy; empty until it has looked at it as it is now."""
    policy = cluster.api.get(f"{POLICIES}/{RELEASE}-tranche-agent-dashboard-{kind}")
    status: dict[str, Any] = policy.get("status", {})
    return status if status.get("observedGeneration") == policy["metadata"]["generation"] else {}
