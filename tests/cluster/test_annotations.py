"""Annotations become claims on a real API server, by the controller as its chart runs it."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.helm_release import HelmRelease
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import pod, pods_in
from release.image import MadeImage

from tranche.kubernetes.webhook.identity import read_bundle

pytestmark = pytest.mark.cluster

AGENTS = "annotations-system"
CLAIMS = "/apis/resource.k8s.io/v1"
# A GPU that two may have a half of, as far as the scheduler knows.
CARD = {
    "name": "gpu-0-shared",
    "allowMultipleAllocations": True,
    "attributes": {
        "type": {"string": "shared"},
        "model": {"string": "NVIDIA T4"},
        "cardMemoryMiB": {"int": 14336},
        "isolation": {"string": "soft"},
        "mechanism": {"string": "mps"},
    },
    "capacity": {
        "memory": {
            "value": "14Gi",
            "requestPolicy": {"default": "1Mi", "validRange": {"min": "1Mi", "max": "14Gi", "step": "1Mi"}},
        }
    },
}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def release(cluster: Cluster, p4d: Node, agent_image: MadeImage) -> Iterator[HelmRelease]:
    """The controller alone: its DaemonSet is for no node."""
    cluster.kubectl("create", "namespace", AGENTS)
    controller = {"enabled": True, "certificateLifetime": "20s"}
    values = {"nodeSelector": {"tests.tranche.dev/none": "true"}, "dra": {"enabled": True}, "controller": controller}
    release = HelmRelease(cluster, "annotations", AGENTS, agent_image, values)
    # Of no node: its kubelet removes what a driver shows that is not there.
    pool = {"name": "annotations", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.tranche.dev", "allNodes": True, "pool": pool, "devices": [CARD]}
    name = "tests-annotations"
    # Those of agents that have ended: a kubelet takes half a minute to remove them.
    cluster.api.delete_all(f"{CLAIMS}/resourceslices")
    try:
        release.install()
        cluster.apply(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
        )
        wait_until_ready(release)
        yield release
    finally:
        cluster.kubectl("delete", "resourceslice", name, "--ignore-not-found")
        release.uninstall()
        cluster.kubectl("delete", "namespace", AGENTS, "--wait=false")


@pytest.fixture
def opted_in(cluster: Cluster, namespace: str, release: HelmRelease) -> str:
    cluster.kubectl("label", "namespace", namespace, "tranche.dev/inject=enabled")
    wait_for("the API server asks about the namespace", lambda: refusal(cluster, asking(namespace, gpu="nonsense")))
    return namespace


def wait_until_ready(release: HelmRelease) -> None:
    controller = f"deployment/{release.objects}-controller"
    release.cluster.kubectl("rollout", "status", controller, f"--namespace={AGENTS}", "--timeout=120s")


def asking(namespace: str, annotations: dict[str, str] | None = None, /, **own: str) -> dict[str, Any]:
    made = pod(f"asking-{next(_numbers)}", namespace)
    made["metadata"]["annotations"] = (annotations or {}) | {f"tranche.dev/{key}": value for key, value in own.items()}
    return made


def refusal(cluster: Cluster, made: dict[str, Any], *options: str) -> str:
    """What the API server says against the pod; "" when it takes it."""
    try:
        cluster.kubectl("create", "-f-", *options, stdin=json.dumps(made))
    except ClusterError as error:
        return error.message
    return ""


def created(cluster: Cluster, made: dict[str, Any]) -> dict[str, Any]:
    cluster.apply(made)
    meta = made["metadata"]
    return dict(cluster.api.get(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"))


def templates(cluster: Cluster, namespace: str) -> list[str]:
    items = cluster.api.get(f"{CLAIMS}/namespaces/{namespace}/resourceclaimtemplates")["items"]
    return [item["metadata"]["name"] for item in items]


def claims(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Claims by the pod that they were made for."""
    items = cluster.api.get(f"{CLAIMS}/namespaces/{namespace}/resourceclaims")["items"]
    return {item["metadata"]["ownerReferences"][0]["name"]: item for item in items}


def test_a_manifest_of_kai_needs_no_change_and_the_scheduler_gives_it_its_half(cluster: Cluster, opted_in: str) -> None:
    made = asking(opted_in, {"gpu-fraction": "0.5", "gpu-fraction-container-name": "main"})
    made["metadata"]["labels"] = {"kai.scheduler/queue": "team-a"}
    made["spec"]["schedulerName"] = "kai-scheduler"
    taken = created(cluster, made)
    (template,) = templates(cluster, opted_in)
    assert taken["spec"]["resourceClaims"] == [{"name": "tranche", "resourceClaimTemplateName": template}]
    assert taken["spec"]["containers"][0]["resources"]["claims"] == [{"name": "tranche"}]
    assert taken["spec"]["schedulerName"] == "default-scheduler"
    name = made["metadata"]["name"]

    def allocated() -> Any:
        claim = claims(cluster, opted_in).get(name) or {}
        return (claim.get("status") or {}).get("allocation")

    (result,) = wait_for("the claim is allocated", allocated)["devices"]["results"]
    assert (result["device"], result["consumedCapacity"]) == ("gpu-0-shared", {"memory": "7Gi"})
    # Others of the same words have the same template, whichever replica answers, and claims of their own.
    others = [asking(opted_in, {"gpu-fraction": "0.5"}) for _ in range(6)]
    for each in others:
        created(cluster, each)
    wait_for(
        "each has its claim", lambda: {each["metadata"]["name"] for each in others} < claims(cluster, opted_in).keys()
    )
    assert templates(cluster, opted_in) == [template]


def test_a_namespace_that_does_not_opt_in_is_left_alone(cluster: Cluster, release: HelmRelease, namespace: str) -> None:
    for made in (asking(namespace, gpu="0.5"), asking(namespace, gpu="nonsense")):
        assert "resourceClaims" not in created(cluster, made)["spec"]
    assert templates(cluster, namespace) == []


def test_bad_annotations_are_refused_with_the_reason_and_a_dry_run_writes_nothing(
    cluster: Cluster, opted_in: str
) -> None:
    two = refusal(cluster, asking(opted_in, {"gpu-memory": "2000"}, gpu="0.5"))
    assert 'admission webhook "pods.tranche.dev" denied the request' in two
    assert "the annotations tranche.dev/gpu and gpu-memory request 2 different things; keep only one of them" in two
    both = asking(opted_in, gpu="0.5")
    both["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
    assert "container 'main' requests nvidia.com/mig-1g.5gb, but the pod's annotations also request a share" in refusal(
        cluster, both
    )
    assert refusal(cluster, asking(opted_in, gpus="1"), "--dry-run=server") == ""
    assert (templates(cluster, opted_in), pods_in(cluster, opted_in)) == ([], [])


@pytest.mark.long
def test_while_no_replica_answers_only_annotated_pods_wait(
    cluster: Cluster, release: HelmRelease, opted_in: str
) -> None:
    controller = f"deployment/{release.objects}-controller"
    cluster.kubectl("scale", controller, f"--namespace={AGENTS}", "--replicas=0")
    try:
        wait_for(
            "nobody answers",
            lambda: "failed calling webhook" in refusal(cluster, asking(opted_in, gpus="1"), "--dry-run=server"),
        )
        assert refusal(cluster, pod("plain", opted_in)) == ""
    finally:
        cluster.kubectl("scale", controller, f"--namespace={AGENTS}", "--replicas=2")
    wait_until_ready(release)
    wait_for("it answers again", lambda: refusal(cluster, asking(opted_in, gpus="1")) == "")


@pytest.mark.long
def test_certificates_come_and_go_and_no_pod_notices(cluster: Cluster, release: HelmRelease, opted_in: str) -> None:
    """Each is valid for 20 seconds here, and the next one serves after ten."""
    path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{release.objects}-controller"

    def trusted() -> set[str]:
        (bundle,) = {each["clientConfig"]["caBundle"] for each in cluster.api.get(path)["webhooks"]}
        return {each.pem for each in read_bundle(base64.b64decode(bundle).decode())}

    first, refused = trusted(), []

    def renewed() -> bool:
        refused.append(refusal(cluster, asking(opted_in, gpus="1"), "--dry-run=server"))
        return not first & trusted()

    wait_for("every certificate has been replaced", renewed, timeout=120)
    assert set(refused) == {""}
    # Somebody writes over it, as an upgrade of the chart may.
    cluster.kubectl("patch", "mutatingwebhookconfiguration", f"{release.objects}-controller", "--type=json",
                    '--patch=[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]')  # fmt: skip
    wait_for("it is trusted again", lambda: refusal(cluster, asking(opted_in, gpus="1"), "--dry-run=server") == "")
