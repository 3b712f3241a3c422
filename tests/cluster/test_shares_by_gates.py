"""A cluster whose API server knows no claims: the same requests, by scheduling gates and the controller's choice.

By default the programs of the other tests emulate Kubernetes 1.33, which serves no resource.k8s.io/v1.
TRANCHE_OLDER_KUBERNETES=1 has 1.33 itself built, once, and runs that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.binaries import ensure_older
from cluster.chart_values import simulated_machines
from cluster.cluster import Cluster, remove_cluster, this_process
from cluster.helm_release import HelmRelease
from cluster.node import Node
from cluster.tenants import given, rates, tenants
from cluster.waiting import wait_for
from cluster.workloads import FOREVER, log, phases, pod, pods_in
from release.image import MadeImage

from tests.cluster.test_virtual_gpus import daemons
from tests.machines import TRANCHE

pytestmark = pytest.mark.cluster

AGENTS, TEAM = "tranche-system", "team"
LOOK = f"nvidia-smi -L; echo end; {FOREVER}"
CROWD = int(os.environ.get("TRANCHE_GATES_CROWD", "12"))
OLDER = bool(os.environ.get("TRANCHE_OLDER_KUBERNETES"))


@pytest.fixture(scope="module")
def old_cluster(suitable_machine: None) -> Iterator[Cluster]:
    running = os.environ.get("TRANCHE_TEST_GATES_CLUSTER")
    if running:
        yield Cluster.open(running)
        return
    name = f"gates-{os.getpid()}"
    nodes = {"p4d": "p4d.24xlarge", "t4": "g4dn.xlarge"}
    kubernetes: dict[str, Any] = {"programs": ensure_older(_say)} if OLDER else {"emulates": "1.33"}
    try:
        yield Cluster.create(name, nodes, time_scale=0.1, owner=this_process(), say=_say, **kubernetes)
    finally:
        remove_cluster(name)


@pytest.fixture(scope="module")
def release(old_cluster: Cluster, agent_image: MadeImage) -> Iterator[HelmRelease]:
    for name in (AGENTS, TEAM):
        old_cluster.kubectl("create", "namespace", name)
    old_cluster.kubectl("label", "namespace", TEAM, "tranche.dev/inject=enabled")
    old_cluster.kubectl("label", "node", "p4d", "tranche.dev/mode=dynamic")
    values = {
        **simulated_machines(old_cluster.folder),
        "migStrategy": "mixed",
        "shareByMps": True,
        # An API server that emulates an older one still says its own version.
        "dra": {"enabled": True, "tier": "auto" if OLDER else "gates"},
        "controller": {"enabled": True, "replicas": 1},
    }
    made = HelmRelease(old_cluster, "gates", AGENTS, agent_image, values)
    made.install()
    controller = f"deployment/{made.objects}-controller"
    old_cluster.kubectl("rollout", "status", controller, f"--namespace={AGENTS}", "--timeout=120s")
    wait_for("the node hands out shares", lambda: _handed_out(old_cluster, "p4d"))
    yield made
    if os.environ.get("TRANCHE_TEST_GATES_CLUSTER"):
        made.uninstall()
        for name in (AGENTS, TEAM):
            old_cluster.kubectl("delete", "namespace", name)


def test_the_same_requests_are_served_without_claims(old_cluster: Cluster, release: HelmRelease) -> None:
    p4d = old_cluster.node("p4d")
    job = ("--image", "localhost/busybox:1", "-n", TEAM, "--", "sh", "-c", LOOK)
    dry = _tranche(old_cluster, "submit", "--gpu-memory", "4Gi", "--name", "dry", "--dry-run", "-o", "json", *job)
    (made,) = json.loads(dry)["items"]
    assert made["kind"] == "Job"
    assert made["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "tranche.dev/share"}]
    _tranche(old_cluster, "submit", "--gpu-memory", "4Gi", "--name", "small", *job)
    old_cluster.apply(
        _asking("kai", **{"gpu-memory": "9000"}),
        _asking("profile", **{"tranche.dev/mig-profile": "2g.10gb"}),
        _asking("whole", **{"tranche.dev/gpus": "1"}),
    )
    wait_for("all run", lambda: phases(old_cluster, TEAM) == {"Running": 4}, explain=lambda: _why(old_cluster))
    for name, profile in (("small", "1g.5gb"), ("kai", "1g.10gb"), ("profile", "2g.10gb")):
        assert f"MIG {profile}" in _seen(old_cluster, name), name
    assert "MIG" not in _seen(old_cluster, "whole")
    # Each sees what was chosen for it, and nothing else.
    uuids = [line for name in ("small", "kai", "profile", "whole") for line in _seen(old_cluster, name).splitlines()]
    assert len({line for line in uuids if "MIG-" in line or "whole" in line}) == 3
    assert {each["keeper"]["kind"] for each in _held(p4d)} == {"placed-pod"}


@pytest.mark.long
def test_a_crowd_gets_each_a_slice_of_its_own_while_agent_and_controller_are_killed(
    old_cluster: Cluster, release: HelmRelease
) -> None:
    old_cluster.kubectl("delete", "jobs,pods", "--all", "--namespace", TEAM, "--timeout=120s")
    words = ("--image", "localhost/busybox:1", "-n", TEAM, "--name", "crowd", "--parallelism", str(CROWD))
    _tranche(old_cluster, "submit", "--gpu-memory", "4Gi", *words, "--", "sh", "-c", LOOK)
    wait_for("some run", lambda: phases(old_cluster, TEAM)["Running"] > 1, explain=lambda: _why(old_cluster))
    for part in ("-controller", ""):
        selector = f"--selector=app.kubernetes.io/name={release.objects}{part}"
        old_cluster.kubectl("delete", "pods", selector, f"--namespace={AGENTS}", "--grace-period=0", "--force")
    full = min(CROWD, 56)

    def served() -> bool:
        return phases(old_cluster, TEAM)["Running"] == full

    wait_for("all that fit run", served, timeout=120, explain=lambda: _why(old_cluster))
    names = [each["metadata"]["name"] for each in pods_in(old_cluster, TEAM) if each["status"]["phase"] == "Running"]
    slices = [line for name in names for line in _seen(old_cluster, name).splitlines() if "MIG-" in line]
    assert len(slices) == len({line.rpartition("UUID: ")[2] for line in slices}) == full
    if full < CROWD:
        waiting = next(
            each["metadata"]["name"] for each in pods_in(old_cluster, TEAM) if each["status"]["phase"] == "Pending"
        )
        said = _tranche(old_cluster, "explain", f"pod/{waiting}", "-n", TEAM)
        assert "none of 2 nodes can serve it now" in said
        assert "what would help" in said
    # What has ended is free for others, and the slices stay.
    old_cluster.kubectl("delete", "jobs", "--all", "--namespace", TEAM, "--timeout=120s")

    wait_for(
        "everything is given back",
        lambda: not _held(old_cluster.node("p4d")),
        explain=lambda: _why(old_cluster),
    )


def test_an_agents_token_tells_of_its_own_node_only_and_chooses_nothing(
    old_cluster: Cluster, release: HelmRelease
) -> None:
    account = old_cluster.account_kubeconfig(AGENTS, release.objects, "p4d")

    def refusal(*words: str, stdin: str = "") -> str:
        command = [old_cluster.binaries["kubectl"], f"--kubeconfig={account}", "--dry-run=server", "-n", AGENTS, *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        return done.stderr

    def making(name: str, label: str = "", node: str = "") -> str:
        meta: dict[str, Any] = {"name": name, "namespace": AGENTS}
        meta |= {"labels": {"tranche.dev/placing": label}} if label else {}
        meta |= {"annotations": {"tranche.dev/node": node}} if node else {}
        made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {}}
        return refusal("create", "-f-", stdin=json.dumps(made))

    def writing(name: str, patch: dict[str, Any]) -> str:
        lease = json.loads(old_cluster.kubectl("get", "lease", name, "-n", AGENTS, "-o", "json"))
        lease["metadata"] |= {key: {**lease["metadata"].get(key, {}), **each} for key, each in patch.items()}
        return refusal("replace", "-f-", stdin=json.dumps(lease))

    own, another, word = "tranche-report-p4d", "tranche-report-t4", "only its own node"
    assert "runs on node p4d" in making(another, "gpus", "t4")
    assert "runs on node p4d" in making(another, "gpus", "p4d")
    assert "may not write" in making("tranche-choices-t4", "choices", "t4")
    assert "may not write" in making("tranche-placer")
    assert "may not write" in making("anything", "gpus", "t4")
    assert "may not write" in writing("tranche-choices-p4d", {"annotations": {"tranche.dev/choices": "{}"}})
    assert "may not write" in refusal("delete", "lease", "tranche-choices-p4d")
    assert word in writing(own, {"annotations": {"tranche.dev/node": "t4"}})
    assert word in writing(own, {"labels": {"tranche.dev/placing": "choices"}})
    assert word in making("tranche-layout.t4", "choices", "t4")
    assert making("tranche-layout.t4", node="t4") == ""
    assert making("tranche-rollout") == ""
    assert writing(own, {"annotations": {"tranche.dev/generation": "1"}}) == ""
    policy = old_cluster.api.get(
        f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{release.objects}-own-leases"
    )
    assert not policy["status"]["typeChecking"], policy["status"]


@pytest.fixture
def shared_t4(old_cluster: Cluster, release: HelmRelease) -> Iterator[Node]:
    """The T4's node, which gives shares by demand for the length of the test; nobody else is there."""
    old_cluster.kubectl("delete", "jobs,pods,deployments", "--all", "--namespace", TEAM, "--timeout=120s")
    old_cluster.kubectl("label", "node", "t4", "tranche.dev/mode=shared")
    try:
        wait_for("the T4's node hands out shares", lambda: _handed_out(old_cluster, "t4"))
        yield old_cluster.node("t4")
    finally:
        old_cluster.kubectl("delete", "jobs,pods,deployments", "--all", "--namespace", TEAM, "--timeout=120s")
        old_cluster.kubectl("label", "node", "t4", "tranche.dev/mode-")


@pytest.mark.long
def test_pods_share_a_card_by_mps_each_within_its_limit(old_cluster: Cluster, shared_t4: Node) -> None:
    made = tenants("busy", TEAM, 3)
    # Two fifths of the card each: there is no room for a third.
    made["spec"]["template"]["metadata"]["annotations"] = {"tranche.dev/gpu": "0.4", "tranche.dev/gpu-model": "T4"}
    old_cluster.apply(made)
    wait_for(
        "two run and one waits",
        lambda: phases(old_cluster, TEAM) == {"Running": 2, "Pending": 1},
        explain=lambda: _why(old_cluster),
    )
    running = [each["metadata"]["name"] for each in pods_in(old_cluster, TEAM) if each["status"]["phase"] == "Running"]
    wait_for("each has its memory and computes", lambda: all(rates(old_cluster, TEAM, name) for name in running))
    fifths = 2 * 14_913 // 5
    for name in running:
        found = given(old_cluster, TEAM, name)
        assert found is not None
        assert fifths - 800 < found[0] <= fifths, "its part, but for what CUDA takes"
    assert {each["grants"][0]["mechanism"] for each in _held(shared_t4)} == {"mps"}
    assert len(daemons(shared_t4)) == 2, "one daemon and its server for both"


@pytest.mark.long
def test_a_job_whose_node_refuses_it_runs_on_another(old_cluster: Cluster, shared_t4: Node) -> None:
    p4d = old_cluster.node("p4d")
    words = ("--image", "localhost/busybox:1", "-n", TEAM, "--name", "late", "--dry-run", "-o", "json")
    (made,) = json.loads(_tranche(old_cluster, "submit", "--gpus", "1", *words, "--", "sh", "-c", LOOK))["items"]
    # Until there is such a ConfigMap the container does not start, and what was chosen is not taken up. A kubelet waits for the
    # volumes that a container mounts, and for no other.
    spec = made["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "wait", "configMap": {"name": "wait"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "wait", "mountPath": "/wait"}]
    old_cluster.kubectl("cordon", "t4")
    try:
        old_cluster.apply(made)
        (first,) = wait_for("it is bound to the p4d", lambda: _bound(old_cluster, "p4d"))
    finally:
        old_cluster.kubectl("uncordon", "t4")
    taker = p4d.start_program("taker", [*TRANCHE, "run", "--gpus", "8", "--", "sleep", "3600"])
    try:
        wait_for("somebody has all GPUs of the p4d", lambda: bool(_held(p4d)))
        old_cluster.kubectl("create", "configmap", "wait", "--namespace", TEAM)
        (second,) = wait_for(
            "it is made anew on the other node",
            lambda: _bound(old_cluster, "t4"),
            explain=lambda: _why(old_cluster),
        )
        wait_for("it runs", lambda: phases(old_cluster, TEAM) == {"Running": 1}, explain=lambda: _why(old_cluster))
        assert first != second
        job = old_cluster.api.get(f"/apis/batch/v1/namespaces/{TEAM}/jobs/late")
        assert not job["status"].get("failed"), "an eviction is no failure of the job's"
        assert len(_held(p4d)) == 1, "the node gave it nothing of what somebody else has"
    finally:
        taker.stop()
        old_cluster.kubectl("delete", "configmap", "wait", "--namespace", TEAM, "--ignore-not-found")


def _bound(cluster: Cluster, node: str) -> list[str]:
    """The uids of the pods that are on that node and not about to go."""
    return [
        each["metadata"]["uid"]
        for each in pods_in(cluster, TEAM)
        if each["spec"].get("nodeName") == node and "deletionTimestamp" not in each["metadata"]
    ]


def _held(node: Node) -> list[dict[str, Any]]:
    """What somebody has of the node's GPUs."""
    command = node.command([*TRANCHE, "ps", "-o", "json"])
    done = subprocess.run(command, env=node.environment(), capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["allocations"]
    return found


def _tranche(cluster: Cluster, *arguments: str) -> str:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    done = subprocess.run([*TRANCHE, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _asking(name: str, **annotations: str) -> dict[str, Any]:
    made = pod(name, TEAM, script=LOOK)
    made["metadata"]["annotations"] = annotations
    return made


def _seen(cluster: Cluster, name: str) -> str:
    """What the pod of that name, or of that job, has seen."""
    (found,) = [
        each["metadata"]["name"] for each in pods_in(cluster, TEAM) if each["metadata"]["name"].startswith(name)
    ]

    def text() -> str:
        said = log(cluster, TEAM, found)
        return said if "end" in said else ""

    return wait_for(f"{name} has looked", text)


def _handed_out(cluster: Cluster, node: str) -> bool:
    allocatable = cluster.api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]
    return str(allocatable.get("tranche.dev/share", "0")) != "0"


def _why(cluster: Cluster) -> str:
    events = cluster.kubectl("get", "events", "--namespace", TEAM)
    logs = cluster.kubectl("logs", "--namespace", AGENTS, "--selector=app.kubernetes.io/name", "--tail=40")
    return cluster.kubectl("get", "pods", "-o", "wide", "--namespace", TEAM) + events[-3000:] + logs[-6000:]


def _say(line: str) -> None:
    print(line, file=sys.stderr)
