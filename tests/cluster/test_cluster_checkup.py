"""`tranche doctor --cluster` on a real API server: what is wrong is found on its node, and nothing is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.agents import forget_rights, remove_agents
from cluster.cluster import Cluster, remove_cluster, this_process
from cluster.node import Node
from cluster.waiting import wait_for
from release.chart import NAMESPACE, KubeObject, render
from release.image import MadeImage

pytestmark = pytest.mark.cluster

TRANCHE = str(Path(sys.executable).with_name("tranche"))
Findings = list[dict[str, Any]]


def doctor(kubeconfig: Path, code: int) -> Findings:
    """What it finds with the rights of that kubeconfig; its exit code must be this one."""
    done = subprocess.run(
        [TRANCHE, "doctor", "--cluster", "-o", "json"],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    findings: Findings = json.loads(done.stdout)["findings"]
    return findings


def texts(findings: Findings, check: str, status: str) -> list[str]:
    return [each["message"] for each in findings if (each["check"], each["status"]) == (check, status)]


@pytest.fixture(scope="module")
def cluster(suitable_machine: None, agent_image: MadeImage) -> Iterator[Cluster]:
    """A cluster of its own: the checkup looks at every node, and other tests leave labels and counts on theirs."""
    name = f"checkup-{os.getpid()}"
    nodes = {"p4d": "p4d.24xlarge", "g4dn": "g4dn.xlarge"}
    try:
        yield Cluster.create(name, nodes, owner=this_process(), say=lambda line: print(line, file=sys.stderr))
    finally:
        remove_cluster(name)


@pytest.fixture(scope="module")
def p4d(cluster: Cluster) -> Node:
    """A node with eight A100 40 GB."""
    return cluster.node("p4d")


@pytest.fixture(scope="module")
def g4dn(cluster: Cluster) -> Node:
    """A node with a T4."""
    return cluster.node("g4dn")


@pytest.fixture
def admin(cluster: Cluster) -> Path:
    return cluster.kubeconfig


@pytest.fixture
def chart(cluster: Cluster, p4d: Node, g4dn: Node) -> Iterator[list[KubeObject]]:
    """The chart on the node p4d, with an image that nobody has; it goes with the test."""
    objects = render(
        {
            "namespace": {"create": True},
            "image": {"repository": "localhost/nobody-has-this", "tag": "1", "pullPolicy": "Never"},
            "nodeSelector": {"kubernetes.io/hostname": p4d.name},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}},
        }
    )
    cluster.apply(*objects)
    try:
        yield objects
    finally:
        remove_agents(cluster)
        for item in objects:
            if item["kind"].startswith("ValidatingAdmissionPolicy") or item["kind"].startswith("ClusterRole"):
                cluster.kubectl("delete", item["kind"], item["metadata"]["name"], "--ignore-not-found")
        forget_rights(cluster)


@pytest.mark.long
def test_a_cluster_without_an_agent_is_told_how_to_get_one(cluster: Cluster, admin: Path, p4d: Node) -> None:
    remove_agents(cluster)
    findings = doctor(admin, 1)
    assert texts(findings, "agents", "fail") == ["no DaemonSet runs `tranche agent`"]
    assert texts(findings, "api-server", "pass")
    (claims,) = texts(findings, "claims", "pass")
    assert "the scheduler assigns shares on demand through claims" in claims
    assert "the API server keeps all fields that the driver publishes" in claims
    assert cluster.api.get("/apis/resource.k8s.io/v1/resourceslices")["items"] == []


def test_what_is_wrong_is_found_where_it_is(
    cluster: Cluster, admin: Path, p4d: Node, g4dn: Node, chart: list[KubeObject]
) -> None:
    daemon_set = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/tranche-agent"
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def waits() -> bool:
        statuses = [pod["status"].get("containerStatuses") for pod in (cluster.api.get(pods) or {}).get("items", ())]
        reasons = [status[0]["state"].get("waiting", {}).get("reason") for status in statuses if status]
        return "ErrImageNeverPull" in reasons

    wait_for("the agent's pod cannot start", waits, explain=lambda: str(cluster.api.get(daemon_set)))
    cluster.apply(_plugin(p4d))
    cluster.kubectl("label", "node", g4dn.name, "tranche.dev/gpu=true", "--overwrite")
    cluster.kubectl("label", "node", p4d.name, "nvidia.com/mig.config=nobody-answers", "--overwrite")
    try:
        wait_for("the other plugin has a pod", lambda: _pods(cluster, "app=plugin"))
        before = cluster.api.get("/api/v1/nodes")
        findings = doctor(admin, 1)
        image = [each for each in findings if each["check"] == "agent-pod"]
        assert [(each["status"], each["nodes"]) for each in image] == [("fail", [p4d.name])]
        assert "ErrImageNeverPull): localhost/nobody-has-this:1" in image[0]["message"]
        missing = [each for each in findings if each["check"] == "agent-missing"]
        assert [each["nodes"] for each in missing] == [[g4dn.name]]
        assert "nodeSelector or affinity" in missing[0]["hint"]
        assert any("nobody-answers is requested" in text for text in texts(findings, "layout", "fail"))
        conflict = [each for each in findings if each["check"] == "neighbours"]
        assert [(each["status"], each["nodes"]) for each in conflict] == [("fail", [p4d.name])]
        assert len(texts(findings, "rights", "pass")) == 1
        assert texts(findings, "policies", "pass")
        assert texts(findings, "versions", "fail") == []

        cluster.kubectl("delete", "clusterrolebinding", "tranche-agent")
        cluster.kubectl("delete", "validatingadmissionpolicybinding", "tranche-agent-own-node")
        # The API server's own view of rights follows a moment later.
        wait_for("the lost rights are found", lambda: texts(doctor(admin, 1), "rights", "fail"))
        findings = doctor(admin, 1)
        assert "get nodes; list nodes; watch nodes; list pods; watch pods" in texts(findings, "rights", "fail")[0]
        assert "tranche-agent-own-node" in texts(findings, "policies", "warn")[0]
        after = cluster.api.get("/api/v1/nodes")
        assert _labels(before) == _labels(after)
    finally:
        cluster.kubectl(
            "delete", "daemonset", "--namespace=default", "nvidia-device-plugin-daemonset", "--ignore-not-found"
        )
        cluster.kubectl("label", "node", g4dn.name, "tranche.dev/gpu-")
        cluster.kubectl("label", "node", p4d.name, "nvidia.com/mig.config-")


@pytest.mark.long
def test_who_may_read_little_sees_little_and_is_told_so(cluster: Cluster, p4d: Node, namespace: str) -> None:
    cluster.kubectl("create", "serviceaccount", "reader", "--namespace", namespace)
    kubeconfig = cluster.account_kubeconfig(namespace, "reader", p4d.name)
    done = subprocess.run(
        [TRANCHE, "doctor", "--cluster", f"--kubeconfig={kubeconfig}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 41
    assert "may list nodes" in done.stderr
    account = f"{namespace}:reader"
    cluster.kubectl("create", "clusterrole", namespace, "--verb=list", "--resource=nodes")
    cluster.kubectl(
        "create", "clusterrolebinding", namespace, f"--clusterrole={namespace}", f"--serviceaccount={account}"
    )
    cluster.kubectl("label", "node", p4d.name, "tranche.dev/gpu=true", "--overwrite")
    asked = ("auth", "can-i", "list", "nodes", f"--as=system:serviceaccount:{account}")
    try:
        wait_for("the right is in force", lambda: cluster.kubectl(*asked))
        findings = doctor(kubeconfig, 0)
        assert "skipped: DaemonSets" in texts(findings, "not-read", "warn")
        assert any(p4d.name in each["nodes"] for each in findings if each["check"] == "node")
    finally:
        cluster.kubectl("label", "node", p4d.name, "tranche.dev/gpu-")
        cluster.kubectl("delete", "clusterrolebinding,clusterrole", namespace)


def _plugin(node: Node) -> KubeObject:
    """A DaemonSet under the name of NVIDIA's device plugin, which sleeps."""
    container = {
        "name": "main",
        "image": "localhost/busybox:1",
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
    }
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node.name},
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": "plugin"}},
            "template": {"metadata": {"labels": {"app": "plugin"}}, "spec": spec},
        },
    }


def _pods(cluster: Cluster, selector: str) -> bool:
    listed = cluster.api.get(f"/api/v1/pods?labelSelector={selector}") or {}
    return any(pod["spec"].get("nodeName") for pod in listed.get("items", ()))


def _labels(nodes: Any) -> list[Any]:
    return [(each["metadata"]["name"], each["metadata"].get("labels")) for each in nodes["items"]]
