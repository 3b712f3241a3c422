"""Jobs that a person with `edit` in one namespace submits to a real API server: what is made, refused, and left behind."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster.agents import remove_device_classes
from cluster.cluster import Cluster
from cluster.waiting import wait_for
from release.chart import render

from tests.machines import TRANCHE
from tranche.kubernetes.claims.vocabulary import DeviceClassName

pytestmark = pytest.mark.cluster

JOB = ("--image", "localhost/busybox:1", "--name", "train", "--", "sleep", "3600")
KINDS = "jobs,resourceclaimtemplates,resourceclaims,pods"


@dataclass(frozen=True)
class Researcher:
    """Somebody with `edit` in a namespace."""

    cluster: Cluster
    kubeconfig: Path
    namespace: str

    def tranche(self, *arguments: str, code: int = 0, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": "/dev/null", "KUBECONFIG": str(self.kubeconfig)}
        words = [*TRANCHE, *arguments]
        done = subprocess.run(words, env=environment, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done

    def left(self) -> list[str]:
        """What there is of a job in the namespace."""
        return self.cluster.kubectl("get", KINDS, "--namespace", self.namespace, "--output=name").split()


@pytest.fixture
def classes(cluster: Cluster) -> Iterator[None]:
    made = [item for item in render({"dra": {"enabled": True}}) if item["kind"] == "DeviceClass"]
    cluster.apply(*made)
    yield
    remove_device_classes(cluster)


@pytest.fixture
def researcher(cluster: Cluster, namespace: str) -> Researcher:
    cluster.kubectl("create", "serviceaccount", "eve", "--namespace", namespace)
    account = f"--serviceaccount={namespace}:eve"
    cluster.kubectl("create", "rolebinding", "eve", "--clusterrole=edit", account, "--namespace", namespace)
    found = Researcher(cluster, cluster.account_kubeconfig(namespace, "eve"), namespace)
    wait_for("edit allows to list jobs", lambda: _allowed(found))
    return found


def _allowed(researcher: Researcher) -> bool:
    words = ["auth", "can-i", "create", "jobs.batch", "--as", f"system:serviceaccount:{researcher.namespace}:eve"]
    try:
        return "yes" in researcher.cluster.kubectl(*words, "--namespace", researcher.namespace)
    except Exception:
        return False


def test_a_job_owns_all_that_is_made_for_it(cluster: Cluster, classes: None, researcher: Researcher) -> None:
    where = ("-n", researcher.namespace)
    researcher.tranche("submit", "--gpu-memory", "4Gi", *where, *JOB)
    wait_for("its pod is made", lambda: any(each.startswith("pod/") for each in researcher.left()))
    described = researcher.tranche("job", "describe", "train", *where).stdout
    assert "request    --gpu-memory 4Gi" in described
    assert "your account has no permission to read nodes" in described
    cluster.kubectl("delete", "job", "train", "--namespace", researcher.namespace, "--wait=false")
    wait_for("the garbage collector has removed the template as well", lambda: not researcher.left())


@pytest.mark.long
def test_what_a_dry_run_prints_can_be_applied_and_deleted(
    cluster: Cluster, classes: None, researcher: Researcher
) -> None:
    where = ("-n", researcher.namespace)
    printed = researcher.tranche("submit", "--mig-profile", "1g.5gb", "--dry-run", *where, *JOB).stdout
    assert researcher.left() == []
    cluster.kubectl(f"--kubeconfig={researcher.kubeconfig}", "apply", "--filename=-", stdin=printed)
    assert "train" in researcher.tranche("job", "list", *where).stdout
    researcher.tranche("job", "delete", "train", *where)
    wait_for("all of it is gone", lambda: not researcher.left())


def test_a_quota_of_a_device_class_says_why_a_pod_waits(
    cluster: Cluster, classes: None, researcher: Researcher
) -> None:
    namespace, where = researcher.namespace, ("-n", researcher.namespace)
    hard = {f"{DeviceClassName.WHOLE}.deviceclass.resource.k8s.io/devices": "0"}
    meta = {"name": "gpus", "namespace": namespace}
    cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}})
    wait_for(
        "the quota is counted", lambda: "used" in cluster.kubectl("get", "quota", "gpus", "-n", namespace, "-oyaml")
    )
    researcher.tranche("submit", "--gpus", "1", *where, *JOB)
    why = "Waiting: Kubernetes cannot create the pod's claim: exceeded quota: gpus"
    wait_for("it is said", lambda: why in researcher.tranche("job", "describe", "train", *where).stdout)
    researcher.tranche("job", "delete", "train", *where)


def test_what_may_not_be_made_leaves_nothing(cluster: Cluster, classes: None, researcher: Researcher) -> None:
    refused = researcher.tranche("submit", "--gpus", "1", "-n", "default", *JOB, code=41)
    assert 'cannot create resource "jobs"' in refused.stderr
    assert "name your namespace with -n" in refused.stderr
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": researcher.namespace},
    }
    cluster.apply({**quota, "spec": {"hard": {"count/jobs.batch": "0"}}})
    where = ("-n", researcher.namespace)

    def quota_says_no() -> bool:
        status = cluster.kubectl("get", "quota", "none", "--namespace", researcher.namespace, "--output=json")
        return "hard" in json.loads(status).get("status", {})

    wait_for("the quota is counted", quota_says_no)
    assert "exceeded quota" in researcher.tranche("submit", "--gpus", "1", *where, *JOB, code=41).stderr
    assert researcher.left() == []


def test_a_cluster_without_the_chart_and_a_claim_of_another_hand_are_said(
    cluster: Cluster, researcher: Researcher
) -> None:
    where = ("-n", researcher.namespace)
    # Who may not read device classes is not kept from trying.
    researcher.tranche("submit", "--gpus", "1", *where, "--dry-run", *JOB)
    cluster.kubectl("create", "clusterrole", "classes", "--verb=get,list", "--resource=deviceclasses")
    account = f"--serviceaccount={researcher.namespace}:eve"
    cluster.kubectl("create", "clusterrolebinding", "classes", "--clusterrole=classes", account)
    try:
        wait_for("the classes can be read", lambda: "dra.enabled" in _refusal(researcher, where))
    finally:
        cluster.kubectl("delete", "clusterrolebinding,clusterrole", "classes")


def _refusal(researcher: Researcher, where: tuple[str, str]) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/dev/null", "KUBECONFIG": str(researcher.kubeconfig)}
    words = [*TRANCHE, "submit", "--gpus", "1", *where, "--dry-run", *JOB]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stderr
