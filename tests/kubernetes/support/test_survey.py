"""A survey of a cluster: what it asks, that it changes nothing, and what it makes of refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kubernetes.fake_api_server import FakeApiServer, Seen, api_server
from tranche.core.errors import KubernetesForbidden
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.claims.allocation_backend import PROBE_PATH, ClaimFeatureGate, DryRunResult, probe_slice
from tranche.kubernetes.claims.quantity import gpu_counts
from tranche.kubernetes.support.facts import ClusterFacts, ControllerFacts
from tranche.kubernetes.support.programs import REVIEWS
from tranche.kubernetes.support.survey import survey

FORBIDDEN = (403, {"message": "no"})
ARGUMENTS = ["--in-use=drain", "--layouts=mine", "--max-unavailable=1"]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/sys/leases"
POLICIES = ("/validatingadmissionpolicies", "/validatingadmissionpolicybindings")


def daemon_set(namespace: str, name: str, image: str, *command: str, **spec: Any) -> dict[str, Any]:
    container = {"image": image, "command": list(command), "args": spec.pop("args", [])}
    pod_spec = {"containers": [container], "serviceAccountName": "agent", **spec}
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": {"app.kubernetes.io/version": "0.1.0"}},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": {"spec": pod_spec}},
        "status": {"desiredNumberScheduled": 1},
    }


def cluster(server: FakeApiServer) -> None:
    """One node, an agent that is not ready, and NVIDIA's device plugin."""
    server.put("/api/v1/nodes/n1", {"status": {"capacity": {"nvidia.com/gpu": "1k", "cpu": "8"}}})
    agent = daemon_set("sys", "agent", "tranche-agent:1", "tranche", "agent", args=ARGUMENTS)
    plugin = daemon_set("kube-system", "nvidia-device-plugin-daemonset", "nvidia/k8s-device-plugin:1")
    server.refusals |= {
        ("GET", "/version"): (200, {"gitVersion": "v1.36.0"}),
        ("GET", "/daemonsets"): (200, {"items": [agent, plugin]}),
        ("GET", "/deployments"): (200, {"items": [deployment("tranche", "controller"), deployment("nginx")]}),
        ("POST", REVIEWS): (201, {"status": {"allowed": False}}),
        **{
            ("GET", path): (200, {"items": [ours("tranche-agent-own-node"), {"metadata": {"name": "x"}}]})
            for path in POLICIES
        },
        ("GET", LEASES): (200, {"items": [ticket("n2", "waiting", 2), ticket("n1", "failed", 1)]}),
        ("GET", "/proxy/readyz"): (503, {"ready": False, "components": {"inventory": "no kubelet"}}),
    }
    pod = {
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]},
    }
    for path, app in (("sys/pods/agent-1", "agent"), ("kube-system/pods/plugin-1", "nvidia-device-plugin-daemonset")):
        server.put(f"/api/v1/namespaces/{path}", {**pod, "metadata": {"labels": {"app": app}}})
    server.put("/api/v1/namespaces/sys/configmaps/mine", {"data": {"config.yaml": "version: v1\n"}})


def deployment(*command: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "sys", "name": "-".join(command)},
        "spec": {"replicas": 0, "template": {"spec": {"containers": [{"command": list(command)}]}}},
    }


def ticket(node: str, state: str, second: int) -> dict[str, Any]:
    meta = {"name": f"tranche-layout.{node}", "annotations": {"tranche.dev/node": node}}
    return {
        "metadata": {**meta, "creationTimestamp": f"2026-11-21T00:00:0{second}Z"},
        "spec": {"holderIdentity": state},
    }


def ours(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"helm.sh/chart": "tranche-0.1.0"}}}


async def _surveyed(**refusals: tuple[int, dict[str, Any]]) -> tuple[ClusterFacts, list[Seen]]:
    async with api_server() as server:
        cluster(server)
        server.refusals |= {("GET", f"/{end}"): answer for end, answer in refusals.items()}
        connection = ApiConnection(ApiServer(server.url))
        try:
            return await survey(connection), server.requests
        finally:
            await connection.aclose()


def surveyed(**refusals: tuple[int, dict[str, Any]]) -> tuple[ClusterFacts, list[Seen]]:
    return asyncio.run(_surveyed(**refusals))


def test_it_finds_agents_neighbours_policies_and_what_agents_say() -> None:
    facts, _ = surveyed()
    (agents,) = facts.agents
    assert gpu_counts(facts.nodes[0].capacity) == {"nvidia.com/gpu": 1000}
    assert (agents.daemon_set.name, agents.layouts) == ("agent", "version: v1\n")
    assert [(str(pod), pod.node, pod.ready_page) for pod in agents.pods] == [
        ("sys/agent-1", "n1", {"inventory": "no kubelet"})
    ]
    assert agents.lacking is not None
    assert {"create pods/eviction", "patch nodes/status", "watch configmaps mine in sys"} <= set(agents.lacking)
    assert [(each.node, each.state) for each in agents.turns] == [("n1", "failed"), ("n2", "waiting")]
    ((other,), policies) = facts.others, facts.policies
    assert (other.product, other.nodes) == ("NVIDIA's device plugin", ("n1",))
    assert policies == facts.bindings == frozenset({"tranche-agent-own-node"})
    assert facts.unread == {}


def test_it_only_reads() -> None:
    _, requests = surveyed()
    assert {seen.method for seen in requests} == {"GET", "POST"}
    assert {seen.path for seen in requests if seen.method == "POST"} == {REVIEWS, PROBE_PATH}
    (tried,) = [seen for seen in requests if seen.path == PROBE_PATH]
    assert tried.query["dryRun"] == "All"


@pytest.mark.parametrize(
    ("answer", "probe"),
    [
        ((404, {"message": "the server could not find the requested resource"}), DryRunResult(served=False)),
        ((403, {"message": "may not"}), DryRunResult(why="cannot create a ResourceSlice as a dry run: may not")),
        ((422, {"message": "invalid"}), DryRunResult(why="cannot create a ResourceSlice as a dry run: invalid")),
        ((201, probe_slice()), DryRunResult(kept=frozenset(ClaimFeatureGate))),
        ((201, {"spec": {"devices": [{"name": "probe"}]}}), DryRunResult(kept=frozenset())),
    ],
)
def test_what_the_api_server_drops_of_a_resource_slice_is_seen(
    answer: tuple[int, dict[str, Any]], probe: DryRunResult
) -> None:
    async def tried() -> ClusterFacts:
        async with api_server() as server:
            cluster(server)
            server.refusals["POST", PROBE_PATH] = answer
            connection = ApiConnection(ApiServer(server.url))
            try:
                return await survey(connection)
            finally:
                await connection.aclose()

    assert asyncio.run(tried()).claims == probe


def test_what_may_not_be_read_is_named_and_the_rest_is_seen() -> None:
    facts, _ = surveyed(daemonsets=FORBIDDEN, validatingadmissionpolicies=FORBIDDEN)
    assert facts.agents == ()
    assert [each.name for each in facts.nodes] == ["n1"]
    assert set(facts.unread) == {"DaemonSets", "admission policies"}


def test_an_api_server_without_admission_policies_is_no_error() -> None:
    absent = (404, {"message": "not found"})
    facts, _ = surveyed(validatingadmissionpolicies=absent, validatingadmissionpolicybindings=absent)
    assert (facts.policies, facts.bindings, facts.unread) == (None, None, {})


def test_who_may_not_list_nodes_is_told_so() -> None:
    with pytest.raises(KubernetesForbidden, match="list nodes"):
        surveyed(nodes=FORBIDDEN)


def test_a_long_list_is_read_in_pieces() -> None:
    async def pieces() -> tuple[ClusterFacts, list[Seen]]:
        async with api_server() as server:
            cluster(server)
            first = {"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "more"}}
            server.failures = [
                (200, {"gitVersion": "v1"}),
                (200, first),
                (200, {"items": [{"metadata": {"name": "b"}}]}),
            ]
            connection = ApiConnection(ApiServer(server.url))
            try:
                return await survey(connection), server.requests
            finally:
                await connection.aclose()

    facts, requests = asyncio.run(pieces())
    assert [node.name for node in facts.nodes] == ["a", "b"]
    assert requests[2].query["continue"] == "more"


def test_the_controller_is_known_by_what_it_runs() -> None:
    facts, _ = asyncio.run(_surveyed())
    assert facts.controllers == (ControllerFacts("sys", "tranche-controller", wanted=0, ready=0),)
