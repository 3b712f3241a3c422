"""What a tenant with `edit` in one namespace, and whoever has got hold of an agent's token, try and are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster.agents import ACCOUNT, NAMESPACE, agent_on, install_rights, rights_to_drain
from cluster.claims import NODES
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.node_layouts import label, labels, wait_for_state
from cluster.waiting import wait_for
from cluster.workloads import phases, pod

from tests.cluster.bearer import Bearer

pytestmark = pytest.mark.cluster

FOREIGN_LABELS = (
    *("node-role.kubernetes.io/control-plane", "node-restriction.kubernetes.io/trusted", "kubernetes.io/hostname"),
    *("topology.kubernetes.io/zone", "nvidia.com/mig.config", "nvidia.com/device-plugin.config", "example.com/tenant"),
)
OWN_LABELS = ("nvidia.com/mig.config.state", "nvidia.com/gpu.count", "nvidia.com/mig-1g.5gb.memory")


@dataclass(frozen=True)
class Somebody:
    """A user of the cluster who is not its administrator."""

    cluster: Cluster
    kubeconfig: Path

    def tries(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl answers: "done", or the refusal."""
        try:
            self.cluster.kubectl(f"--kubeconfig={self.kubeconfig}", *arguments, stdin=stdin)
        except ClusterError as error:
            return error.message
        return "done"

    def patches(self, path: str, patch: dict[str, Any]) -> str:
        """What becomes of a merge patch."""
        return self._asks("PATCH", path, patch)

    def evicts(self, namespace: str, name: str) -> str:
        """What becomes of the wish to evict a pod."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        return self._asks("POST", path, body)

    def _asks(self, method: str, path: str, body: dict[str, Any]) -> str:
        """Ask without kubectl, which takes a tenth of a second of processor each time: "done", or the refusal."""
        (user,) = json.loads(self.kubeconfig.read_text())["users"]
        return Bearer(self.cluster.api, user["user"]["token"]).tries(method, path, body)


def is_refused(answer: str) -> bool:
    return "orbidden" in answer or "denied" in answer


@pytest.fixture
def tenant(cluster: Cluster, namespace: str) -> Somebody:
    """Somebody with `edit` in the test's namespace, as kubectl's `create rolebinding` gives it."""
    cluster.kubectl("create", "serviceaccount", "tenant", "--namespace", namespace)
    subject = f"--serviceaccount={namespace}:tenant"
    cluster.kubectl("create", "rolebinding", "tenant", "--clusterrole=edit", subject, "--namespace", namespace)
    somebody = Somebody(cluster, cluster.account_kubeconfig(namespace, "tenant"))
    wait_for(
        "edit allows to make pods", lambda: somebody.tries("auth", "can-i", "create", "pods", "-n", namespace) == "done"
    )
    return somebody


@pytest.fixture
def thief(cluster: Cluster, p4d: Node, g4dn: Node) -> Iterator[Somebody]:
    """Somebody with the token of the agent that runs on p4d."""
    install_rights(cluster)
    somebody = Somebody(cluster, cluster.account_kubeconfig(NAMESPACE, ACCOUNT, p4d.name))
    probe = {"metadata": {"labels": {"example.com/probe": "1"}}}
    wait_for("the policy is in force", lambda: is_refused(somebody.patches(f"{NODES}/{p4d.name}", probe)))
    before = cluster.api.get(f"{NODES}/{p4d.name}")
    yield somebody
    after = cluster.api.get(f"{NODES}/{p4d.name}")
    assert after["spec"] == before["spec"]
    assert _of_others(after) == _of_others(before)


def test_a_tenant_stops_no_layout_whatever_its_pods_are_called(
    cluster: Cluster, p4d: Node, namespace: str, tenant: Somebody
) -> None:
    operand = "nvidia.com/gpu.deploy.dcgm"
    for name in ("nvidia-mig-manager", "nvidia-dcgm"):
        made = pod(name, namespace, node=p4d.name)
        made["metadata"]["labels"] = {"app": name}
        assert tenant.tries("create", "--filename=-", stdin=json.dumps(made)) == "done"
    wait_for("they run", lambda: phases(cluster, namespace) == {"Running": 2})
    try:
        with agent_on(cluster, p4d, "--mig-strategy=mixed"):
            cluster.kubectl("label", "node", p4d.name, f"{operand}=true")
            label(cluster, p4d, "all-balanced")
            wait_for_state(cluster, p4d, "success")
            assert labels(cluster, p4d)[operand] == "true"
    finally:
        cluster.kubectl("label", "node", p4d.name, f"{operand}-")
        label(cluster, p4d, None)
        p4d.renew_machine()


def test_a_tenant_is_refused_the_node_and_all_that_is_the_agents(
    cluster: Cluster, p4d: Node, namespace: str, tenant: Somebody
) -> None:
    install_rights(cluster)
    for answer in (
        tenant.patches(f"{NODES}/{p4d.name}", {"metadata": {"labels": {"nvidia.com/mig.config": "all-1g.5gb"}}}),
        tenant.patches(
            f"{NODES}/{p4d.name}", {"metadata": {"annotations": {"tranche.dev/mig.config.cordoned": "true"}}}
        ),
        tenant.patches(f"{NODES}/{p4d.name}/status", {"status": {"capacity": {"nvidia.com/gpu": "0"}}}),
        tenant.tries("get", "configmaps", "--namespace", NAMESPACE),
        tenant.tries("create", "configmap", "tranche-layouts", "--namespace", NAMESPACE),
        tenant.tries("create", "token", ACCOUNT, "--namespace", NAMESPACE),
        tenant.tries("create", "namespace", "gpu-operator"),
        tenant.tries("create", "--filename=-", stdin=json.dumps(pod("nvidia-mig-manager", NAMESPACE))),
        tenant.tries("create", "--filename=-", stdin=json.dumps(pod("nvidia-mig-manager", "kube-system"))),
    ):
        assert is_refused(answer), answer


def test_an_agents_token_changes_no_more_of_its_node_than_what_the_agent_has_to_write(
    cluster: Cluster, p4d: Node, g4dn: Node, thief: Somebody
) -> None:
    own, other = f"{NODES}/{p4d.name}", f"{NODES}/{g4dn.name}"
    refused = [thief.patches(own, {"metadata": {"labels": {key: "x"}}}) for key in FOREIGN_LABELS]
    refused += [thief.patches(own, {"metadata": {"labels": {"kubernetes.io/os": None}}})]
    refused += [
        thief.patches(node, patch)
        for node, patch in (
            (own, {"metadata": {"annotations": {"example.com/owner": "x"}}}),
            (own, {"metadata": {"finalizers": ["example.com/stay"]}}),
            (own, {"spec": {"taints": [{"key": "example.com/mine", "effect": "NoExecute"}]}}),
            (own, {"spec": {"unschedulable": True}}),
            (own, {"spec": {"providerID": "aws:///i-1"}}),
            (f"{own}/status", {"status": {"capacity": {"nvidia.com/gpu": "99"}}}),
            (f"{own}/status", {"status": {"allocatable": {"cpu": "0"}}}),
            (f"{own}/status", {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}),
            (f"{own}/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
            (f"{own}/status", {"metadata": {"labels": {"node-role.kubernetes.io/x": ""}}}),
            (other, {"metadata": {"labels": {OWN_LABELS[0]: "x"}}}),
            (f"{other}/status", {"status": {"conditions": []}}),
        )
    ]
    for answer in refused:
        assert is_refused(answer), answer
    for key in OWN_LABELS:
        assert thief.patches(own, {"metadata": {"labels": {key: "1"}}}) == "done"
        assert thief.patches(own, {"metadata": {"labels": {key: None}}}) == "done"


def test_an_agents_token_reads_and_does_nothing_beside_its_work(
    cluster: Cluster, p4d: Node, namespace: str, thief: Somebody
) -> None:
    cluster.apply(pod("victim", namespace, node=p4d.name))
    wait_for("the pod runs", lambda: phases(cluster, namespace) == {"Running": 1})
    for answer in (
        thief.evicts(namespace, "victim"),
        thief.tries("delete", "pod", "victim", "--namespace", namespace),
        thief.tries("get", "pod", "victim", "--namespace", namespace),
        thief.tries("logs", "victim", "--namespace", namespace),
        thief.tries("exec", "victim", "--namespace", namespace, "--", "true"),
        thief.tries("create", "--filename=-", stdin=json.dumps(pod("mine", NAMESPACE))),
        thief.tries("get", "secrets", "--namespace", NAMESPACE),
        thief.tries("get", "configmaps", "--namespace", namespace),
        thief.tries("delete", "node", p4d.name),
        thief.tries("create", "token", ACCOUNT, "--namespace", NAMESPACE),
        thief.tries("get", "--raw", f"/api/v1/nodes/{p4d.name}/proxy/pods"),
    ):
        assert is_refused(answer), answer
    assert phases(cluster, namespace) == {"Running": 1}


def test_with_the_rights_to_drain_an_agents_token_evicts_on_its_own_node_alone(
    cluster: Cluster, p4d: Node, g4dn: Node, namespace: str, thief: Somebody
) -> None:
    cluster.apply(pod("here", namespace, node=p4d.name), pod("there", namespace, node=g4dn.name))
    wait_for("the pods run", lambda: phases(cluster, namespace) == {"Running": 2})
    own, cordoned = f"{NODES}/{p4d.name}", "tranche.dev/mig.config.cordoned"
    with rights_to_drain(cluster):
        # A namespace without pods has no parameters for the policy, which denies then.
        wait_for("the policy of evictions is in force", lambda: "params" in thief.evicts("kube-public", "nobody"))
        assert "this agent runs on node p4d" in thief.evicts(namespace, "there")
        assert is_refused(thief.patches(own, {"spec": {"unschedulable": True}})), "not announced by the annotation"
        assert thief.patches(own, {"metadata": {"annotations": {cordoned: "true"}}}) == "done"
        assert thief.patches(own, {"spec": {"unschedulable": True}}) == "done"
        assert thief.patches(own, {"spec": {"unschedulable": None}}) == "done"
        assert thief.patches(own, {"metadata": {"annotations": {cordoned: None}}}) == "done"
        assert thief.evicts(namespace, "here") == "done"
        wait_for("the taint of the cordon is gone", lambda: not _taints(cluster, p4d))
    assert is_refused(thief.evicts(namespace, "there"))


def test_the_api_server_finds_nothing_to_object_to_in_the_policies(cluster: Cluster, thief: Somebody) -> None:
    with rights_to_drain(cluster):
        for name in ("tranche-agent-own-node", "tranche-agent-evictions"):
            checked = wait_for(f"{name} is checked", partial(_status_of_policy, cluster, name))
            assert not checked["typeChecking"], checked


def test_a_token_of_no_node_changes_no_node(cluster: Cluster, p4d: Node, thief: Somebody) -> None:
    nowhere = Somebody(cluster, cluster.account_kubeconfig(NAMESPACE, ACCOUNT))
    answer = nowhere.patches(f"{NODES}/{p4d.name}", {"metadata": {"labels": {OWN_LABELS[0]: "x"}}})
    assert "only its own node" in answer


def _status_of_policy(cluster: Cluster, name: str) -> dict[str, Any]:
    """What the API server says of a policy; empty until it has looked at it as it is now."""
    policy = cluster.api.get(f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}")
    status: dict[str, Any] = policy.get("status", {})
    return status if status.get("observedGeneration") == policy["metadata"]["generation"] else {}


def _of_others(node: dict[str, Any]) -> dict[str, str]:
    return {key: value for key, value in node["metadata"]["labels"].items() if key not in OWN_LABELS}


def _taints(cluster: Cluster, node: Node) -> object:
    taints: object = cluster.api.get(f"{NODES}/{node.name}")["spec"].get("taints")
    return taints
