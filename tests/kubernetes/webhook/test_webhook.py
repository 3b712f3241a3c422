"""The webhook's answers: a claim, nothing, or a refusal with its reason; and the cluster's GPUs as it knows them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.fake_api_server import api_server
from tests.kubernetes.waiting import patiently, until
from tests.kubernetes.webhook.json_patch import patched
from tranche.core.errors import KubernetesForbidden, KubernetesUnavailable, TrancheError
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.claims.annotations import _CONTAINERS, _OPTIONS
from tranche.kubernetes.claims.vocabulary import PODSET_LABEL, QUEUE_LABEL, SHARE_GATE, SHARE_RESOURCE
from tranche.kubernetes.fleet.devices import FleetDevice, decode_fleet_slice
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.webhook.injection import TEMPLATE_LABEL, template_name
from tranche.kubernetes.webhook.template_store import TemplateStore
from tranche.kubernetes.webhook.webhook import PATH, PodWebhook, gpu_model_watch

GPU = {
    "attributes": {
        "type": {"string": "shared"},
        "model": {"string": "NVIDIA T4"},
        "cardMemoryMiB": {"int": 15000},
        "uuid": {"string": "GPU-1"},
    },
    "capacity": {"memory": {"value": "14Gi", "requestPolicy": {"default": "1Mi"}}, "compute": {"value": "100"}},
}
SLICE = {
    "metadata": {"name": "n-shared"},
    "spec": {
        "driver": "gpu.tranche.dev",
        "devices": [{"name": "gpu-0-shared", **GPU}, {"name": "gpu-0", "attributes": {"type": {"string": "whole"}}}],
    },
}


class KeptTemplates:
    def __init__(self, error: TrancheError | None = None, requests: Mapping[str, str] | None = None) -> None:
        self.made: list[tuple[str, str]] = []
        self._error = error
        self._requests = requests

    async def request_of(self, namespace: str, name: str) -> str:
        return "--gpu-memory 4Gi" if self._requests is None else self._requests.get(name, "")

    async def ensure(self, namespace: str, devices: Mapping[str, Any], request: str) -> str:
        if self._error is not None:
            raise self._error
        self.made.append((namespace, request))
        return template_name(devices)


def review(annotations: dict[str, str], **request: object) -> dict[str, Any]:
    pod = {
        "metadata": {"generateName": "train-", "annotations": annotations},
        "spec": {"containers": [{"name": "main"}]},
    }
    asked = {"uid": "u1", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "team", "object": pod}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked | request}


def answered(
    question: object,
    templates: KeptTemplates | None = None,
    cards: Sequence[FleetDevice] | None = decode_fleet_slice(SLICE).devices,
    *,
    path: str = PATH,
    backend: AllocationBackend = AllocationBackend.CLAIMS,
) -> tuple[HTTPStatus, dict[str, Any]]:
    in_force: LatestValue[AllocationBackend] = LatestValue()
    in_force.publish(backend)
    known: LatestValue[tuple[FleetDevice, ...]] = LatestValue()
    if cards is not None:
        known.publish(tuple(cards))
    webhook = PodWebhook(
        cast(TemplateStore, templates or KeptTemplates()),
        known,
        in_force,
        take_over=["kai-scheduler"],
    )
    body = question if isinstance(question, bytes) else json.dumps(question).encode()
    answer = asyncio.run(webhook.answer(path, body))
    return answer.status, json.loads(answer.content)


def response(question: dict[str, Any], **given: Any) -> dict[str, Any]:
    status, page = answered(question, **given)
    assert status is HTTPStatus.OK
    assert page["response"].pop("uid") == question["request"]["uid"]
    found: dict[str, Any] = page["response"]
    return found


def test_an_annotated_pod_gets_its_claim_and_the_template_is_there_before_the_answer() -> None:
    templates = KeptTemplates()
    question = review({"gpu-fraction": "0.5"})
    question["request"]["object"]["spec"]["schedulerName"] = "kai-scheduler"
    found = response(question, templates=templates)
    assert found["allowed"]
    assert templates.made == [("team", "--gpu 0.5")]
    after = patched(question["request"]["object"], json.loads(base64.b64decode(found["patch"])))
    (claim,) = after["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"].startswith("tranche-")
    assert after["spec"]["containers"] == [{"name": "main", "resources": {"claims": [{"name": "tranche"}]}}]
    assert after["spec"]["schedulerName"] == "default-scheduler"


def job_review(annotations: dict[str, str], labels: dict[str, str]) -> dict[str, Any]:
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "main"}]}}
    job = {"metadata": {"name": "train", "labels": labels}, "spec": {"suspend": True, "template": template}}
    return review({}, kind={"kind": "Job"}, object=job)


def test_a_job_of_a_queue_gets_the_claim_in_its_template_and_its_pods_need_no_more() -> None:
    templates = KeptTemplates()
    question = job_review({"tranche.dev/gpu-memory": "4Gi"}, {QUEUE_LABEL: "gpus"})
    found = response(question, templates=templates)
    assert templates.made == [("team", "--gpu-memory 4Gi")]
    job = patched(question["request"]["object"], json.loads(base64.b64decode(found["patch"])))
    pod = job["spec"]["template"]
    name = pod["metadata"]["labels"][TEMPLATE_LABEL]
    assert pod["spec"]["resourceClaims"] == [{"name": "tranche", "resourceClaimTemplateName": name}]
    assert pod["spec"]["containers"] == [{"name": "main", "resources": {"claims": [{"name": "tranche"}]}}]
    assert response(review({}, object=pod)) == {"allowed": True}
    assert response(review({}, kind={"kind": "Job"}, object=job)) == {"allowed": True}


def template(annotations: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "main"}]}}


SMALL, LARGE, NONE = (
    template(each) for each in ({"tranche.dev/gpu-memory": "4Gi"}, {"tranche.dev/gpus": "1"}, {"example.com/a": "b"})
)
SPECS: dict[str, dict[str, Any]] = {
    "JobSet": {"replicatedJobs": [{"template": {"spec": {"template": each}}} for each in (NONE, SMALL, LARGE)]},
    "PyTorchJob": {"pytorchReplicaSpecs": {"Master": {"template": SMALL}, "Worker/a~": {"template": LARGE}}},
    "RayJob": {"rayClusterSpec": {"headGroupSpec": {"template": SMALL}, "workerGroupSpecs": [{"template": LARGE}]}},
}


def claims_of(found: Any) -> list[str]:
    """The templates of all claims in it, in order."""
    if isinstance(found, list):
        return [each for inside in found for each in claims_of(inside)]
    if not isinstance(found, dict):
        return []
    own = [found["resourceClaimTemplateName"]] if "resourceClaimTemplateName" in found else []
    return own + [each for inside in found.values() for each in claims_of(inside)]


@pytest.mark.parametrize("kind", SPECS)
def test_each_pod_template_of_what_a_queue_counts_gets_its_own_claim(kind: str) -> None:
    templates = KeptTemplates()
    raw = {"metadata": {"generateName": "train-", "labels": {QUEUE_LABEL: "gpus"}}, "spec": SPECS[kind]}
    question = review({}, kind={"kind": kind}, object=raw)
    found = response(question, templates=templates)
    assert templates.made == [("team", "--gpu-memory 4Gi"), ("team", "--gpus 1")]
    after = patched(raw, json.loads(base64.b64decode(found["patch"])))
    assert len(set(claims_of(after))) == len(claims_of(after)) == 2
    assert response(review({}, kind={"kind": kind}, object=after)) == {"allowed": True}


def test_a_manifest_that_is_applied_again_keeps_the_claims_of_the_templates_that_had_them() -> None:
    question = job_review({"tranche.dev/gpu-memory": "4Gi"}, {QUEUE_LABEL: "gpus"})
    manifest = question["request"]["object"]
    created = patched(manifest, json.loads(base64.b64decode(response(question)["patch"])))
    again = review({}, kind={"kind": "Job"}, operation="UPDATE", object=manifest, oldObject=created)
    assert patched(manifest, json.loads(base64.b64decode(response(again)["patch"]))) == created
    # The template of a Job that has pods cannot change: a Job from before the namespace opted in must stay as it is.
    older = review({}, kind={"kind": "Job"}, operation="UPDATE", object=manifest, oldObject=manifest)
    assert response(older) == {"allowed": True}
    assert response(review({"tranche.dev/gpu-memory": "4Gi"}, operation="UPDATE")) == {"allowed": True}


@pytest.mark.parametrize("spec", [{}, {"replicatedJobs": 3}, {"replicatedJobs": [7, {"template": []}]}, 5])
def test_an_object_of_another_shape_is_let_in_as_it_is(spec: Any) -> None:
    raw = {"metadata": {"labels": {QUEUE_LABEL: "gpus"}}, "spec": spec}
    assert response(review({}, kind={"kind": "JobSet"}, object=raw)) == {"allowed": True}


def test_nothing_is_written_when_one_of_several_templates_is_refused() -> None:
    templates = KeptTemplates()
    jobs = [{"template": {"spec": {"template": each}}} for each in (SMALL, template({"tranche.dev/gpu": "nonsense"}))]
    raw = {"metadata": {"labels": {QUEUE_LABEL: "gpus"}}, "spec": {"replicatedJobs": jobs}}
    assert not response(review({}, kind={"kind": "JobSet"}, object=raw), templates=templates)["allowed"]
    assert templates.made == []


def test_a_job_without_a_queue_gets_its_claim_too_since_the_label_may_come_later() -> None:
    assert "patch" in response(job_review({"tranche.dev/gpu-memory": "4Gi"}, {}))


def test_a_job_does_not_wait_for_a_controller_that_cannot_answer_yet() -> None:
    unavailable = KeptTemplates(KubernetesUnavailable("cannot reach it"))
    annotations = {"tranche.dev/gpu-memory": "4Gi"}
    assert response(job_review(annotations, {}), templates=unavailable) == {"allowed": True}
    assert not response(review(annotations), templates=unavailable)["allowed"]


def test_without_claims_a_job_gets_the_gate_and_the_resource_that_a_queue_counts() -> None:
    annotations = {"tranche.dev/gpu-memory": "4Gi"}
    question = job_review(annotations, {QUEUE_LABEL: "gpus"})
    patch = json.loads(base64.b64decode(response(question, backend=AllocationBackend.GATES)["patch"]))
    pod = patched(question["request"]["object"], patch)["spec"]["template"]
    assert pod["spec"]["schedulingGates"] == [{"name": SHARE_GATE}]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {SHARE_RESOURCE: "1"}
    counted = review({}, object={**pod, "metadata": {"annotations": annotations, "labels": {PODSET_LABEL: "main"}}})
    assert response(counted, backend=AllocationBackend.GATES) == {"allowed": True}
    never = response(counted_pod(annotations, ""), backend=AllocationBackend.GATES)
    assert "but Kueue counted no share for this pod" in never["status"]["message"]


def test_a_queued_job_whose_claim_would_list_alternatives_is_refused() -> None:
    fraction = {"tranche.dev/gpu": "0.5"}
    found = response(job_review(fraction, {QUEUE_LABEL: "gpus"}))
    assert "a queue cannot count tranche.dev/gpu 0.5" in found["status"]["message"]
    assert response(job_review(fraction, {}))["allowed"]


def counted_pod(annotations: dict[str, str], template: str) -> dict[str, Any]:
    meta = {"annotations": annotations, "labels": {PODSET_LABEL: "main", TEMPLATE_LABEL: template}}
    claims = [{"name": "tranche", "resourceClaimTemplateName": template}] if template else []
    return review({}, object={"metadata": meta, "spec": {"containers": [{"name": "main"}], "resourceClaims": claims}})


def test_a_pod_gets_no_more_than_what_kueue_has_counted() -> None:
    small = {"tranche.dev/gpu-memory": "4Gi"}
    question = job_review(small, {})
    (name,) = claims_of(
        patched(question["request"]["object"], json.loads(base64.b64decode(response(question)["patch"])))
    )
    assert response(counted_pod(small, name))["allowed"]
    changed = response(counted_pod({"tranche.dev/gpus": "3"}, name))
    assert (
        "request tranche.dev/gpus 3, but Kueue counted tranche.dev/gpu-memory 4Gi for" in changed["status"]["message"]
    )
    never = response(counted_pod(small, ""))
    assert "but Kueue counted no share for this pod" in never["status"]["message"]
    gone = response(counted_pod({"tranche.dev/gpus": "3"}, name), templates=KeptTemplates(requests={}))
    assert "but Kueue counted no share for this pod" in gone["status"]["message"]
    # The claim of a fraction lists the cluster's sizes of GPUs, which may be others when the pod is made.
    older = KeptTemplates(requests={"tranche-0123456789abcdef": "--gpu 0.5"})
    fraction = counted_pod({"tranche.dev/gpu": "0.5"}, "tranche-0123456789abcdef")
    kept = response(fraction, templates=older)
    assert kept["allowed"]
    after = patched(fraction["request"]["object"], json.loads(base64.b64decode(kept["patch"])))
    assert claims_of(after) == ["tranche-0123456789abcdef"]
    assert older.made == []


def test_a_job_that_asks_for_nonsense_is_refused_before_it_has_pods() -> None:
    found = response(job_review({"tranche.dev/gpu": "nonsense"}, {QUEUE_LABEL: "gpus"}))
    assert (found["allowed"], found["status"]["code"]) == (False, 422)


def test_a_dry_run_gives_the_same_answer_and_writes_nothing() -> None:
    wet, dry = KeptTemplates(), KeptTemplates()
    annotations = {"tranche.dev/gpu-memory": "4Gi"}
    assert response(review(annotations), templates=wet) == response(review(annotations, dryRun=True), templates=dry)
    assert (wet.made, dry.made) == ([("team", "--gpu-memory 4Gi")], [])


@pytest.mark.parametrize(
    "change",
    [{"operation": "UPDATE"}, {"kind": {"kind": "Job"}}, {"subResource": "ephemeralcontainers"}, {"object": None}],
)
def test_what_does_not_concern_it_is_let_in_as_it_is(change: dict[str, object]) -> None:
    assert response(review({"tranche.dev/gpu": "nonsense"}, **change)) == {"allowed": True}
    assert response(review({"example.com/a": "b"})) == {"allowed": True}


@pytest.mark.parametrize(
    ("annotations", "code", "words"),
    [
        ({"tranche.dev/gpu-memory": "lots"}, 422, "'lots' is not an amount of memory; write it as 4G"),
        ({"tranche.dev/gpus": "33"}, 422, "a claim can have at most 32"),
        ({"gpu-fraction": "0.5", "gpu-memory": "1"}, 422, "gpu-memory and gpu-fraction request 2 different things"),
    ],
)
def test_a_bad_request_is_refused_with_its_reason_and_writes_nothing(
    annotations: dict[str, str], code: int, words: str
) -> None:
    templates = KeptTemplates()
    found = response(review(annotations), templates=templates)
    assert not found["allowed"]
    assert found["status"]["code"] == code
    assert words in found["status"]["message"]
    assert templates.made == []


@pytest.mark.parametrize(
    ("error", "code"), [(KubernetesUnavailable("cannot reach it"), 503), (KubernetesForbidden("exceeded quota"), 403)]
)
def test_a_template_that_cannot_be_made_keeps_the_pod_out(error: TrancheError, code: int) -> None:
    found = response(review({"tranche.dev/gpus": "1"}), templates=KeptTemplates(error))
    assert (found["allowed"], found["status"]["code"]) == (False, code)
    assert error.message in found["status"]["message"]


def test_a_fraction_waits_until_the_clusters_gpus_are_known_and_an_amount_does_not() -> None:
    assert response(review({"gpu-fraction": "0.5"}), cards=None)["status"]["code"] == 503
    assert response(review({"tranche.dev/gpu-memory": "4Gi"}), cards=None)["allowed"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        pytest.param(b"[" * 100_000, id="deep"),
        b"[]",
        b"{}",
        b'{"request": []}',
        json.dumps({**review({}), "apiVersion": "v0"}).encode(),
    ],
)
def test_what_is_no_question_gets_no_answer(body: bytes) -> None:
    status, page = answered(body)
    assert status is HTTPStatus.BAD_REQUEST
    assert "the request " in page["message"]
    assert answered(review({}), path="/other")[0] is HTTPStatus.NOT_FOUND


def test_the_resource_slices_are_followed_and_of_them_shared_devices_are_kept() -> None:
    async def check() -> None:
        async with api_server() as server:
            connection = ApiConnection(ApiServer(server.url))
            watch = gpu_model_watch(connection)
            assert not watch.ready().ready
            work = asyncio.create_task(watch.run())
            await until(lambda: watch.ready().ready)
            server.put("/apis/resource.k8s.io/v1/resourceslices/n-shared", SLICE)
            await until(lambda: [each.name for each in watch.latest.value] == ["gpu-0-shared"])
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await connection.aclose()

    asyncio.run(patiently(check()))


@given(st.text(st.one_of(st.sampled_from("\x1b\n\x07\x9b\u202e"), st.characters()), min_size=1))
def test_no_refusal_makes_a_terminal_act_or_a_line_of_its_own(text: str) -> None:
    for wrong in (
        {"tranche.dev/gpu-memory": text},
        {f"tranche.dev/{text}": "1"},
        {"tranche.dev/container": text},
    ):
        for annotated in (wrong, {"tranche.dev/gpus": "1", **wrong}):
            answer = answered(review(annotated))[1]["response"]
            assert answer["allowed"] or answer["status"]["message"].isprintable()


@pytest.mark.parametrize("name", [*_OPTIONS, *_CONTAINERS, "tranche.dev/share", "tranche.dev/nothing"])
def test_a_refusal_is_as_long_as_a_message_may_be_however_long_the_annotation(name: str) -> None:
    """And its end, which says what is wrong with the text, is there."""
    for text in ("A" * 200_000, "1" * 200_000, "1g." * 66_000):
        found = answered(review({"tranche.dev/gpu": "0.5", name: text} if "gpu-model" in name else {name: text}))
        response = found[1]["response"]
        assert not response["allowed"]
        assert len(response["status"]["message"]) <= 1024
    odd = answered(review({"tranche.dev/gpu-memory": "A" * 200_000}))[1]["response"]["status"]["message"]
    assert "is not an amount of memory" in odd


@pytest.mark.parametrize("also", [{}, {"tranche.dev/gpus": "1"}])
def test_nobody_says_himself_what_was_chosen_for_his_pod(also: dict[str, str]) -> None:
    found = answered(review({"tranche.dev/share": "{}", **also}))[1]["response"]
    assert not found["allowed"]
    assert "only the controller may set" in found["status"]["message"]


WORDS = st.sampled_from(
    ["1", "33", "0.5", "4Gi", "-1", "x", "2g.10gb", "9g.5gb", "hard", "none", "30", "101", "A" * 65]
)


@given(st.dictionaries(st.sampled_from([*_OPTIONS, *_CONTAINERS]), WORDS, min_size=1, max_size=4))
def test_no_refusal_speaks_of_options_that_annotations_do_not_have(annotations: dict[str, str]) -> None:
    found = answered(review(annotations))[1]["response"]
    assert found["allowed"] or "--" not in found["status"]["message"]
