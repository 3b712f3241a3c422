"""The commands for jobs on a cluster: what they print, what they ask, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.api_server_thread import ServedApi, served_api
from tests.conftest import Golden
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.jobs.jobs_server import JOBS, LABELS, PODS, TEMPLATES, ended, put_job, put_pod
from tests.support.in_process import Outcome, run
from tranche.core.request import parse_request
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.jobs.job import decode_job_pod

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-a/localqueues"
PRIORITIES = "/apis/kueue.x-k8s.io/v1beta2/workloadpriorityclasses"
ANYTHING = ("--image", "train:1", "--", "python", "train.py")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ServedApi]:
    with served_api(tmp_path) as served:
        served.change(with_classes)
        yield served


def with_classes(server: FakeApiServer) -> None:
    for name in (
        "gpu.tranche.dev",
        "slice.gpu.tranche.dev",
        "shared.gpu.tranche.dev",
        "whole.gpu.tranche.dev",
        "1g-5gb.gpu.tranche.dev",
        "2g-10gb.gpu.tranche.dev",
    ):
        server.put(f"{CLASSES}/{name}", {})


def tranche(api: ServedApi, *arguments: str, code: int = 0, **environment: str) -> Outcome:
    done = run(
        arguments, {"PATH": os.environ["PATH"], "HOME": "/dev/null", "KUBECONFIG": str(api.kubeconfig)} | environment
    )
    assert not done.fault
    assert done.code == code, done.stderr
    return done


def test_submit_creates_what_its_dry_run_prints(api: ServedApi) -> None:
    words = ("submit", "--gpu-memory", "4Gi", "--name", "train")
    printed = list(yaml.safe_load_all(tranche(api, *words, "--dry-run", *ANYTHING).stdout))
    assert api.server.objects.keys() == {f"{CLASSES}/{name}" for name in _names(api, CLASSES)}
    done = tranche(api, *words, *ANYTHING)
    assert done.stdout == "train\n"
    assert "submitted team-a/train: --gpu-memory 4Gi" in done.stderr
    made = [api.server.objects[f"{TEMPLATES}/train"], api.server.objects[f"{JOBS}/train"]]
    for found, wanted in zip(made, printed, strict=True):
        assert found["spec"] == wanted["spec"]
        assert found["metadata"]["labels"] == wanted["metadata"]["labels"]


def test_a_job_is_submitted_only_to_a_queue_that_is_there(api: ServedApi) -> None:
    words = ("submit", "--gpu-memory", "4Gi", "--name", "train", "--queue", "gpus", "--priority", "high", *ANYTHING)
    done = tranche(api, *words, code=42)
    assert "namespace team-a has no Kueue queue 'gpus'\n" in done.stderr
    assert "its queues: none\n" in done.stderr
    api.change(lambda server: server.put(f"{QUEUES}/gpu", {"metadata": {"name": "gpu"}}))
    assert "did you mean 'gpu'? its queues: gpu\n" in tranche(api, *words, code=42).stderr
    assert f"{JOBS}/train" not in api.server.objects
    api.change(lambda server: server.put(f"{QUEUES}/gpus", {"metadata": {"name": "gpus"}}))
    assert "no WorkloadPriorityClass 'high'\n" in tranche(api, *words, code=42).stderr
    assert f"{JOBS}/train" not in api.server.objects
    api.change(lambda server: server.put(f"{PRIORITIES}/high", {"metadata": {"name": "high"}}))
    tranche(api, *words)
    labels = api.server.objects[f"{JOBS}/train"]["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "gpus"


def _names(api: ServedApi, below: str) -> list[str]:
    return [path.rsplit("/", 1)[1] for path in api.server.objects if path.startswith(f"{below}/")]


def test_a_share_is_asked_for_on_the_gpus_that_the_cluster_has(api: ServedApi) -> None:
    def device(memory: int) -> dict[str, object]:
        attributes = {"type": {"string": "shared"}, "model": {"string": "X"}, "cardMemoryMiB": {"int": memory}}
        return {"attributes": attributes, "capacity": {"memory": {"value": f"{memory}Mi"}}}

    content = {"spec": {"driver": DRIVER, "devices": [device(1000 * number) for number in range(1, 10)]}}
    api.change(lambda server: server.put(f"{SLICES}/n1", content))
    done = tranche(api, "submit", "--gpu", "0.5", "--dry-run", "-ojson", *ANYTHING)
    claim = json.loads(done.stdout)["items"][0]["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"]
    assert [each["name"] for each in claim][:3] == ["slice", "shared-1000mi", "shared-2000mi"]
    assert "leaves out GPUs of 7.81 GiB (1 GPUs), 8.79 GiB (1 GPUs)" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--gpu", "0.5", "--gpus", "1"], 2, "exactly one of"),
        ([], 2, "exactly one of"),
        (["--gpu-memory", "16"], 2, "has no unit"),
        (["--gpu-memory", "4Gi", "--name", "A"], 2, "is not a valid job name"),
        (["--gpu-memory", "4Gi", "--env", "NONE"], 2, "not set in your environment"),
        (["--gpu-memory", "4Gi", "--volume", "x"], 2, "not a volume"),
        (["--gpu-memory", "4Gi", "--completions", "0"], 2, "--completions"),
        (["--gpu-memory", "4Gi", "--queue", "team a"], 2, "--queue 'team a' is not a valid name"),
        (["--gpu-memory", "4Gi", "--queue", ""], 2, "--queue '' is not a valid name"),
        (["--gpu-memory", "4Gi", "--priority", "high"], 2, "--priority needs --queue"),
        (["--gpu", "0.6", "--queue", "team-a"], 2, "the claim lists alternatives"),
        (["--gpus", "33"], 31, "at most 32"),
        (["--mig-profile", "3g.20gb"], 30, "no device class for 3g.20gb"),
        (["--mig-profile", "3g.20g"], 2, "not a MIG profile"),
    ],
)
def test_bad_input_is_refused_and_creates_nothing(api: ServedApi, words: list[str], code: int, message: str) -> None:
    before = dict(api.server.objects)
    done = tranche(api, "submit", *words, *ANYTHING, code=code)
    assert message in done.stderr
    assert api.server.objects == before


def test_a_job_needs_an_image(api: ServedApi) -> None:
    assert "needs an image" in tranche(api, "submit", "--gpus", "1", "--", "true", code=2).stderr
    tranche(api, "submit", "--gpus", "1", "--dry-run", "--", "true", TRANCHE_IMAGE="train:1")


FORBIDDEN = (403, {"message": 'jobs.batch is forbidden: User "eve"'})


@pytest.mark.parametrize(
    ("method", "end", "answer", "code", "message"),
    [
        ("POST", "/jobs", FORBIDDEN, 41, 'User "eve"'),
        ("POST", "/jobs", (404, {"message": 'namespaces "team-a" not found'}), 42, "namespace 'team-a' not found"),
        ("POST", "/resourceclaimtemplates", (422, {"message": "spec is invalid"}), 43, "spec is invalid"),
        ("POST", "/jobs", (503, {"message": "webhook is down"}), 40, "webhook is down"),
    ],
)
def test_every_refusal_of_the_cluster_has_its_reason(
    api: ServedApi, method: str, end: str, answer: tuple[int, dict[str, str]], code: int, message: str
) -> None:
    api.change(lambda server: server.refusals.update({(method, end): answer}))
    done = tranche(api, "submit", "--gpu-memory", "4Gi", *ANYTHING, code=code)
    assert message in done.stderr
    assert "agent's service account" not in done.stderr
    assert not [path for path in api.server.objects if "/namespaces/" in path]


def test_a_cluster_without_our_classes_or_without_an_answer_is_said(api: ServedApi) -> None:
    api.change(lambda server: server.objects.clear())
    assert "dra.enabled=true" in tranche(api, "submit", "--gpu-memory", "4Gi", *ANYTHING, code=47).stderr
    config = api.kubeconfig.read_text().replace(str(api.server.port), "1")
    api.kubeconfig.write_text(config)
    assert "does not answer" in tranche(api, "job", "list", code=40).stderr


def test_without_claims_the_pods_of_a_job_wait_at_a_gate(api: ServedApi) -> None:
    def without_claims(server: FakeApiServer) -> None:
        server.objects.clear()
        server.refusals["GET", "/apis/resource.k8s.io/v1"] = (404, {"message": "404 page not found"})

    words = ("submit", "--gpu", "0.2", "--name", "train", *ANYTHING)
    api.change(without_claims)
    assert "no node in this cluster assigns shares" in tranche(api, *words, code=47).stderr
    api.change(lambda server: server.put("/api/v1/nodes/n1", {"status": {"capacity": {"tranche.dev/share": "250"}}}))
    (printed,) = yaml.safe_load_all(tranche(api, *words[:-5], "--dry-run", *ANYTHING).stdout)
    # A cluster that could, and whose administrator has it do without: there are no device classes.
    api.change(lambda server: server.refusals.clear())
    assert [printed] == list(yaml.safe_load_all(tranche(api, *words[:-5], "--dry-run", *ANYTHING).stdout))
    tranche(api, *words)
    assert api.server.objects[f"{JOBS}/train"]["spec"] == printed["spec"]
    template = printed["spec"]["template"]
    assert template["metadata"]["annotations"] == {"tranche.dev/gpu": "0.2"}
    assert template["spec"]["schedulingGates"] == [{"name": "tranche.dev/share"}]
    assert not _names(api, TEMPLATES)
    tranche(api, "job", "delete", "train")
    assert not _names(api, JOBS)


def test_whoever_may_not_read_what_nodes_offer_is_told_what_to_ask_for(api: ServedApi) -> None:
    api.change(lambda server: server.refusals.update({("GET", "/resourceslices"): (403, {"message": "no"})}))
    done = tranche(api, "submit", "--gpu", "0.5", *ANYTHING, code=41)
    assert "no permission to read ResourceSlices" in done.stderr


def test_list_shows_requests_and_status(api: ServedApi) -> None:
    assert tranche(api, "job", "list").stderr == "no jobs in namespace team-a\n"
    api.change(lambda server: put_job(server, status={"active": 1, "ready": 1}, completions=3))
    rows = tranche(api, "job", "list").stdout.splitlines()
    assert rows[1].split()[:6] == ["train", "--gpu-memory", "4Gi", "Running", "1", "0/3"]
    assert tranche(api, "job", "list", "-A").stdout.splitlines()[1].split()[0] == "team-a"
    (job,) = json.loads(tranche(api, "job", "list", "-o", "json").stdout)["jobs"]
    assert (job["status"], job["created"]) == ("Running", "2026-11-20T10:00:00Z")


def test_logs_name_the_pod_where_there_are_several(api: ServedApi) -> None:
    def two(server: FakeApiServer) -> None:
        put_job(server, completions=2, status=ended("Complete"))
        for name in ("train-0", "train-1"):
            put_pod(server, name)
            server.pages[f"{PODS}/{name}/log"] = f"of {name}\n"

    api.change(two)
    assert tranche(api, "job", "logs", "train").stdout == "[train-0] of train-0\n[train-1] of train-1\n"
    assert tranche(api, "job", "logs", "-f", "train").stdout == "[train-0] of train-0\n[train-1] of train-1\n"
    assert tranche(api, "job", "logs", "train", "--pod", "train-1").stdout == "of train-1\n"
    assert "no pod 'train-2'" in tranche(api, "job", "logs", "train", "--pod", "train-2", code=42).stderr


def test_logs_of_a_job_that_has_not_started_say_so(api: ServedApi) -> None:
    api.change(put_job)
    assert "no pod of job team-a/train has started" in tranche(api, "job", "logs", "train").stderr


def test_wait_ends_as_the_job_does(api: ServedApi) -> None:
    assert "job 'train' not found" in tranche(api, "job", "wait", "train", code=42).stderr
    api.change(lambda server: put_job(server, status={"ready": 1}))
    assert "is running" in tranche(api, "job", "wait", "train", "--for", "running").stderr
    assert (
        "is still Running at the timeout" in tranche(api, "job", "wait", "train", "--timeout", "10ms", code=70).stderr
    )
    api.change(lambda server: put_job(server, status=ended("Failed")))
    assert "has failed: because" in tranche(api, "job", "wait", "train", code=48).stderr
    both = tranche(api, "job", "wait", "other", "train", code=42).stderr
    assert ("job 'other' not found" in both, "has failed: because" in both) == (True, True)
    api.change(lambda server: put_job(server, status=ended("Complete")))
    tranche(api, "job", "wait", "train")


def test_delete_removes_what_submit_made_and_nothing_else(api: ServedApi) -> None:
    tranche(api, "submit", "--gpus", "1", "--name", "train", *ANYTHING)
    tranche(api, "job", "delete", "train")
    assert not _names(api, JOBS)
    assert not _names(api, TEMPLATES)
    assert "job 'train' not found" in tranche(api, "job", "delete", "train", code=42).stderr


def test_delete_leaves_no_name_out_for_one_that_is_not_there(api: ServedApi) -> None:
    for name in ("a", "b", "c"):
        tranche(api, "submit", "--gpus", "1", "--name", name, *ANYTHING)
    done = tranche(api, "job", "delete", "a", "nosuch", "b", "neither", "c", code=42)
    assert not _names(api, JOBS)
    for text in ("deleted team-a/c", "job 'nosuch' not found", "job 'neither' not found"):
        assert text in done.stderr


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--", "python", "\udcff.py"], "the command"),
        (["--env", "A=\udcff", "--", "x"], "--env A"),
        (["--env", "B", "--", "x"], "--env B"),
        (["--workdir", "/\udcff", "--", "x"], "--workdir"),
        (["--volume", "/\udcff:/x", "--", "x"], "--volume"),
        (["--node-selector", "a=\udcff", "--", "x"], "--node-selector"),
    ],
)
def test_bytes_that_no_object_can_hold_are_refused(api: ServedApi, words: list[str], what: str) -> None:
    done = tranche(api, "submit", "--gpus", "1", "--image", "train:1", *words, code=2, B="\udcff")
    assert done.stderr.startswith(f"error: {what} is not UTF-8: b'")


def test_a_profile_without_a_class_is_answered_with_what_nodes_offer(api: ServedApi) -> None:
    def a_node(server: FakeApiServer) -> None:
        from tests.kubernetes.fleet.clusters import a100s, published

        for each in published("p4d", a100s(1)):
            server.put(f"{SLICES}/{each['metadata']['name']}", each)
        for number in range(90):
            server.put(f"{CLASSES}/{number}g-{number}gb.gpu.tranche.dev", {})

    api.change(a_node)
    done = tranche(api, "submit", "--mig-profile", "2g.11gb", *ANYTHING, code=30)
    assert "hint: did you mean '2g.10gb'" in done.stderr
    assert "nodes offer 1g.10gb, 1g.5gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb" in done.stderr.replace("1g.5gb+me, ", "")
    assert len(done.stderr) < 400


def test_nodes_and_their_gpus_are_shown_with_who_has_what(api: ServedApi, golden: Golden) -> None:
    def a_cluster(server: FakeApiServer) -> None:
        from tests.kubernetes.fleet.clusters import a100s, node, published, t4s

        waiting_job(server)
        server.put("/api/v1/nodes/t4", node("t4", mode="shared", unschedulable=True))
        server.put("/api/v1/nodes/p5", node("p5", mode="static"))
        server.put("/api/v1/nodes/cpu", node("cpu", ready=False))
        server.put("/api/v1/nodes/off", node("off", mode="off"))
        slices = published("t4", t4s(), NodeMode.SHARED) + published("off", a100s(1), NodeMode.OFF)
        for each in slices:
            server.put(f"{SLICES}/{each['metadata']['name']}", each)

    api.change(a_cluster)
    golden("nodes.txt", tranche(api, "nodes").stdout)
    listing = tranche(api, "gpus", "--cluster")
    golden("gpus-cluster.txt", listing.stdout)
    assert "not listed: p5; a device plugin reports only how many devices it has" in listing.stderr
    nodes = json.loads(tranche(api, "nodes", "-o", "json").stdout)["nodes"]
    assert [(each["name"], each["mode"], each["claims"]) for each in nodes] == [
        ("off", "off", 0), ("p4d", "mixed", 1), ("p5", "static", 0), ("t4", "shared", 0),
    ]  # fmt: skip
    gpus = json.loads(tranche(api, "gpus", "--cluster", "-o", "json").stdout)["gpus"]
    assert [held["pods"] for gpu in gpus for held in gpu["held"]] == [["team-a/old"]]
    assert "add --cluster" in tranche(api, "gpus", "--kubeconfig", "x", code=2).stderr


def test_whoever_may_not_read_nodes_is_told_and_sees_what_is_left(api: ServedApi) -> None:
    api.change(waiting_job)
    api.change(lambda server: server.refusals.update({("GET", "/nodes"): (403, {"message": "no"})}))
    done = tranche(api, "nodes")
    assert "your account has no permission to read nodes" in done.stderr
    assert done.stdout.splitlines()[1].startswith("p4d")


def test_without_claims_nodes_and_gpus_are_shown_by_what_agents_tell(api: ServedApi) -> None:
    from tests.kubernetes.fleet.clusters import a100s, node
    from tests.kubernetes.gated.reports import gpus_to_lease
    from tranche.core.allocation import NodeView
    from tranche.core.state import NodeState
    from tranche.kubernetes.gated.leases import ChoiceLease, ChosenShare, NodeGpus, choices_to_lease
    from tranche.planning.decide.allocate import Granted, decide

    view = NodeView(NodeState(a100s(2)))
    granted = decide(view, parse_request(mig_profile="2g.10gb"))
    assert isinstance(granted, Granted)

    def a_cluster(server: FakeApiServer) -> None:
        server.put("/api/v1/nodes/p4d", node("p4d", mode="dynamic"))
        server.put("/api/v1/nodes/p5", node("p5", mode="static"))
        chosen = ChoiceLease("p4d").with_choices([ChosenShare("team-a", "train-0", "u1", granted.grants)])
        for lease in (gpus_to_lease(NodeGpus("p4d", view), ("p4d", "uid")), choices_to_lease(chosen)):
            meta = {"labels": dict(lease.labels), "annotations": dict(lease.annotations)}
            server.put(f"/apis/coordination.k8s.io/v1/leases/{lease.name}", {"metadata": meta})
        put_job(server)
        put_pod(server, "train-0")
        pod = server.objects[f"{PODS}/train-0"]
        pod["metadata"]["annotations"] = {"tranche.dev/mig-profile": "2g.10gb"}
        pod["spec"]["containers"][0]["resources"] = {"limits": {"tranche.dev/share": "1"}}

    no_such_kind = {("GET", "v1/resourceslices"): (404, {"message": "no such kind"})}
    api.change(lambda server: server.refusals.update(no_such_kind))
    assert "no agent reports GPUs" in tranche(api, "nodes", code=47).stderr
    api.change(a_cluster)
    lines = tranche(api, "nodes").stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["p4d", "Ready", "dynamic", "2", "×", "NVIDIA", "A100-SXM4-40GB", "1", "40", "GiB", "-"],
        ["p5", "Ready", "static", "nvidia.com/gpu:", "8", "0", "-", "-"],
    ]
    gpus = tranche(api, "gpus", "--cluster").stdout
    assert "slice 2g.10gb" in gpus
    assert "pod team-a/train-0" in gpus
    (held,) = (
        held
        for gpu in json.loads(tranche(api, "gpus", "--cluster", "-o", "json").stdout)["gpus"]
        for held in gpu["held"]
    )
    assert (held["claim"], held["pods"], held["profile"]) == (None, ["team-a/train-0"], "2g.10gb")
    assert json.loads(tranche(api, "job", "describe", "train", "-o", "json").stdout)["given"] == [held]
    api.change(lambda server: server.refusals.update({("GET", "/leases"): (403, {"message": "no"})}))
    assert "your account has no permission to read leases of GPU nodes" in tranche(api, "gpus", "--cluster").stderr


def _gated_job(server: FakeApiServer) -> None:
    """A job of a cluster without claims whose pod waits, and what an agent told of its node."""
    from tests.kubernetes.fleet.clusters import a100s, node
    from tests.kubernetes.gated.reports import gpus_to_lease
    from tranche.core.allocation import NodeView
    from tranche.core.state import NodeState
    from tranche.kubernetes.gated.leases import NodeGpus

    server.put("/api/v1/nodes/p4d", node("p4d", mode="dynamic"))
    lease = gpus_to_lease(NodeGpus("p4d", NodeView(NodeState(a100s(1)))), ("p4d", "uid"))
    meta = {"labels": dict(lease.labels), "annotations": dict(lease.annotations)}
    server.put(f"/apis/coordination.k8s.io/v1/leases/{lease.name}", {"metadata": meta})
    put_job(server)
    container = {"name": "main", "resources": {"limits": {"tranche.dev/share": "1"}}}
    asks: dict[str, Any] = {"labels": LABELS, "annotations": {"tranche.dev/gpu-memory": "4Gi"}, "uid": "u1"}
    spec = {"schedulingGates": [{"name": "tranche.dev/share"}], "containers": [container]}
    server.put(f"{PODS}/train-0", {"metadata": asks, "spec": spec, "status": {"phase": "Pending"}})


def test_a_cluster_that_could_give_claims_and_was_told_gates_is_known_by_what_everybody_may_read(
    api: ServedApi,
) -> None:
    words = ("submit", "--gpu-memory", "4Gi", "--dry-run", *ANYTHING)
    api.change(lambda server: server.objects.clear())
    api.change(_gated_job)  # its nodes hand out nothing now: they are in mode static, or start
    assert "no node in this cluster assigns shares" in tranche(api, *words, code=47).stderr
    assert "p4d" in tranche(api, "gpus", "--cluster").stdout
    assert "the pod is gated until the controller chooses" in tranche(api, "explain", "pod/train-0").stdout
    share = {"status": {"capacity": {"tranche.dev/share": "250"}}}
    api.change(lambda server: server.put("/api/v1/nodes/p4d", share))
    assert "schedulingGates" in tranche(api, *words).stdout
    # Also for whoever may not read the device classes.
    api.change(lambda server: server.refusals.update({("GET", "deviceclasses/tranche"): (403, {"message": "no"})}))
    assert "schedulingGates" in tranche(api, *words).stdout


def test_after_a_change_to_claims_leases_are_nobodys_word_and_a_pod_at_the_gate_is_told_what_to_do(
    api: ServedApi,
) -> None:
    api.change(_gated_job)
    assert "p4d" not in tranche(api, "gpus", "--cluster").stdout
    for words in (("explain", "pod/train-0"), ("job", "describe", "train")):
        text = tranche(api, *words).stdout
        assert "this cluster now assigns shares through claims, so no controller will choose one" in text
        assert "submit them again" in text
        assert "can serve it now" not in text


def test_after_a_change_to_gates_a_pod_with_a_claim_is_told_that_nobody_serves_it(api: ServedApi) -> None:
    api.change(waiting_job)

    def changed(server: FakeApiServer) -> None:
        for name in _names(api, CLASSES):
            server.delete(f"{CLASSES}/{name}")
        server.objects["/api/v1/nodes/p4d"]["status"]["capacity"] = {"tranche.dev/share": "250"}

    api.change(changed)
    for words in (("explain", "pod/train-0"), ("job", "describe", "train")):
        text = tranche(api, *words).stdout
        assert "this cluster now assigns shares at scheduling gates, so no node will serve the claim" in text
        assert "this frees enough room" not in text


WAITING = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}


def waiting_job(server: FakeApiServer) -> None:
    """A p4d whose slices are all held, and a job that waits for one."""
    from tests.kubernetes.fleet.clusters import a100s, claim, decode_pools, node, published

    slices = published("p4d", a100s(1))
    server.put("/api/v1/nodes/p4d", node("p4d", mode="mixed"))
    for each in slices:
        server.put(f"{SLICES}/{each['metadata']['name']}", each)
    whole = next(each for each in decode_pools(slices)["p4d"].devices if each.type == "whole")
    held = claim("old", parse_request(gpus="1"), slices, [whole])
    for each in (held, claim("train-0", parse_request(gpu_memory="4Gi"), slices)):
        server.put(f"/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/{each['metadata']['name']}", each)
    put_job(server, status={"active": 1})
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "train"}]}
    status = {"phase": "Pending", "conditions": [WAITING]}
    status["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "train-0-gpu"}]
    server.put(f"{PODS}/train-0", {"metadata": {"labels": LABELS}, "spec": spec, "status": status})


def test_a_quota_that_refuses_the_claim_is_named_once(api: ServedApi) -> None:
    why = "exceeded quota: gpus, requested: whole.gpu.tranche.dev.deviceclass.resource.k8s.io/devices=1, used: 1, limited: 1"

    def refused(server: FakeApiServer) -> None:
        put_job(server, status={"active": 1})
        spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "train"}]}
        meta = {"labels": LABELS, "uid": "p1"}
        server.put(f"{PODS}/train-0", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
        about = {"kind": "Pod", "name": "train-0", "uid": "p1"}
        for number, start in enumerate(("", "", "(combined from similar events): ")):
            tried = f'{start}create ResourceClaim : resourceclaims.resource.k8s.io "train-{number}" is forbidden: {why}'
            event = {"involvedObject": about, "reason": "FailedResourceClaimCreation", "message": tried}
            event |= {"type": "Warning", "lastTimestamp": f"2026-11-28T10:0{number}:00Z"}
            server.put(f"/api/v1/namespaces/team-a/events/e{number}", event)

    api.change(refused)
    described = tranche(api, "job", "describe", "train").stdout
    assert f"Waiting: Kubernetes cannot create the pod's claim: {why}\n" in described
    assert described.count("FailedResourceClaimCreation") == 1
    assert "combined from" not in described
    assert f"Kubernetes cannot create the pod's claim: {why}\n" in tranche(api, "explain", "pod/train-0").stdout


def test_describe_says_why_a_queue_holds_a_job_back(api: ServedApi) -> None:
    def held(server: FakeApiServer) -> None:
        labels = {**LABELS, "kueue.x-k8s.io/queue-name": "team-a"}
        put_job(server, suspend=True)
        job = server.objects[f"{JOBS}/train"]
        server.put(f"{JOBS}/train", {**job, "metadata": {**job["metadata"], "labels": labels}})

    api.change(held)
    described = tranche(api, "job", "describe", "train").stdout
    assert "status     Suspended: it waits for the Kueue queue team-a, which does not exist\n" in described
    api.change(lambda server: server.put(f"{QUEUES}/team-a", {"metadata": {"name": "team-a"}}))
    assert (
        "status     Suspended: it waits in the Kueue queue team-a\n" in tranche(api, "job", "describe", "train").stdout
    )
    why = "couldn't assign flavors to pod set main: insufficient unused quota for gpu.memory in flavor a100, 4Gi more needed"
    unready = {"type": "PodsReady", "status": "False", "message": "Not all pods are ready or succeeded"}
    condition = {"type": "QuotaReserved", "status": "False", "reason": "WaitingForQuota", "message": why}

    def counted(server: FakeApiServer) -> None:
        meta = {"labels": {"kueue.x-k8s.io/job-uid": server.objects[f"{JOBS}/train"]["metadata"]["uid"]}}
        workloads = QUEUES.replace("localqueues", "workloads")
        server.put(f"{workloads}/job-train-1", {"metadata": meta, "status": {"conditions": [unready, condition]}})
        server.put(
            f"{workloads}/job-other-2", {"metadata": {}, "status": {"conditions": [{**condition, "message": ""}]}}
        )

    api.change(counted)
    described = tranche(api, "job", "describe", "train").stdout
    assert f"status     Suspended: it waits in the Kueue queue team-a: {why}\n" in described


def test_describe_and_explain_say_why_a_job_waits(api: ServedApi) -> None:
    api.change(waiting_job)
    described = tranche(api, "job", "describe", "train").stdout
    explained = tranche(api, "explain", "pod/train-0").stdout
    for text in (described, explained):
        assert "Waiting: node p4d cannot serve it now; it could later" in text
        assert "asks for: --gpu-memory 4Gi" in text
        assert "1. wait for pod team-a/old on node p4d to end; this frees enough room" in text
    assert described.splitlines()[:3] == [
        "job        team-a/train",
        "request    --gpu-memory 4Gi",
        "status     Pending",
    ]
    document = json.loads(tranche(api, "explain", "pod/train-0", "-o", "json").stdout)
    assert (document["status"], document["nodes"][0]["holders"]) == ("Waiting", ["pod team-a/old"])
    assert (
        json.loads(tranche(api, "job", "describe", "train", "-o", "json").stdout)["waiting"][0]["pod"]
        == "team-a/train-0"
    )


def test_describe_shows_what_a_pod_has_and_the_warnings_about_one_that_is_not_ready(api: ServedApi) -> None:
    api.change(waiting_job)

    def gets_the_gpu(server: FakeApiServer) -> None:
        path = f"{PODS}/train-0"
        spec = {**server.objects[path]["spec"], "nodeName": "p4d"}
        waits = [{"state": {"waiting": {"reason": "ContainerCreating"}}}]
        given = [{"name": "gpu", "resourceClaimName": "old-gpu"}]
        status = {"phase": "Pending", "resourceClaimStatuses": given, "containerStatuses": waits}
        server.put(path, {"metadata": {"labels": LABELS}, "spec": spec, "status": status})
        about = {"kind": "Pod", "name": "train-0"}
        event = {
            "involvedObject": about,
            "reason": "FailedPrepareDynamicResources",
            "message": "the driver has lost the GPU",
        }
        server.put("/api/v1/namespaces/team-a/events/e1", {**event, "type": "Warning"})

    api.change(gets_the_gpu)
    lines = tranche(api, "job", "describe", "train").stdout.splitlines()
    assert "train-0  Pending (ContainerCreating)  p4d   all of GPU 0" in lines[6]
    assert lines[-1] == "  train-0: FailedPrepareDynamicResources: the driver has lost the GPU"


KUBELETS_WORD = (
    "Failed to prepare dynamic resources: prepare dynamic resources: "
    "NodePrepareResources failed for ResourceClaim old-gpu: "
)


def given_and_refused(server: FakeApiServer, *, ready: str = "False", **status: Any) -> None:
    """A pod that was given a GPU, and what the kubelet said of it: of an earlier pod of the name, first, and last."""
    waiting_job(server)
    claims = [{"name": "gpu", "resourceClaimTemplateName": "train"}]
    found = {
        "phase": "Pending",
        "conditions": [{"type": "PodReadyToStartContainers", "status": ready}],
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "old-gpu"}],
        **status,
    }
    meta, spec = {"uid": "u-2", "labels": LABELS}, {"nodeName": "p4d", "resourceClaims": claims}
    server.put(f"{PODS}/train-0", {"metadata": meta, "spec": spec, "status": found})
    told = (("e1", "u-1", "09", "GpuLost: it is lost"), ("e2", "u-2", "08", "NoRoom: 8 GiB are needed"))
    for name, uid, minute, why in (*told, ("e3", "u-2", "02", "GpuBusy: GPU 0 is used by a ghost")):
        event = {
            "involvedObject": {"kind": "Pod", "name": "train-0", "uid": uid},
            "reason": "FailedPrepareDynamicResources",
            "message": f"{KUBELETS_WORD}{why}",
            "type": "Warning",
            "lastTimestamp": f"2026-01-01T10:{minute}:00Z",
        }
        server.put(f"/api/v1/namespaces/team-a/events/{name}", event)


def test_explain_says_why_the_node_refuses_to_hand_over_what_a_pod_was_given(api: ServedApi) -> None:
    api.change(given_and_refused)
    lines = tranche(api, "explain", "pod/train-0").stdout.splitlines()
    assert lines[0] == (
        "Preparing: it was allocated devices, but node p4d refuses to prepare them: claim old-gpu: NoRoom: 8 GiB are needed"
    )
    assert "  was given: all of GPU 0 on node p4d" in lines
    assert "  1. delete the pod, so that its replacement is scheduled onto available devices" in lines
    document = json.loads(tranche(api, "explain", "pod/train-0", "-o", "json").stdout)
    assert (document["status"], document["given"][0]["device"]) == ("Preparing", "gpu-0")


@pytest.mark.parametrize(
    "status",
    [
        {"ready": "True"},
        {"phase": "Running"},
        {"initContainerStatuses": [{"state": {"running": {}}}]},
        {"containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]},
    ],
)
def test_explain_forgets_a_refusal_once_the_pod_has_its_devices(api: ServedApi, status: dict[str, Any]) -> None:
    api.change(lambda server: given_and_refused(server, **status))
    assert tranche(api, "explain", "pod/train-0").stdout.startswith("Has: it has its devices on node p4d\n")


def test_explain_says_what_it_does_not_know_of_a_pod_that_has_not_started(api: ServedApi) -> None:
    def forbidden(server: FakeApiServer) -> None:
        given_and_refused(server)
        server.refusals["GET", "/events"] = (403, {"message": "no"})

    api.change(forbidden)
    shown = tranche(api, "explain", "pod/train-0").stdout
    assert shown.startswith("Preparing: it was allocated devices; node p4d has not prepared them yet\n")
    assert (
        "note: your account has no permission to read events in team-a, where the node reports why it refuses" in shown
    )

    def unbound(server: FakeApiServer) -> None:
        given_and_refused(server, conditions=[WAITING])
        path = f"{PODS}/train-0"
        server.put(path, {**server.objects[path], "spec": {**server.objects[path]["spec"], "nodeName": ""}})

    api.change(unbound)
    shown = tranche(api, "explain", "pod/train-0").stdout
    assert shown.startswith("Preparing: its claim has devices on node p4d; the scheduler has not bound the pod yet")
    assert WAITING["message"] in shown


def test_explain_says_what_a_pod_has_of_the_device_plugin(api: ServedApi) -> None:
    def served(server: FakeApiServer) -> None:
        waiting_job(server)
        containers = [{"name": "main", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "2"}}}]
        spec = {"nodeName": "p4d", "containers": containers}
        server.put(f"{PODS}/train-0", {"metadata": {}, "spec": spec, "status": {"phase": "Running"}})

    api.change(served)
    shown = tranche(api, "explain", "pod/train-0").stdout
    assert shown.startswith("Has: it has 2 nvidia.com/mig-1g.5gb from the device plugin on node p4d, and no claim\n")


START_ERROR = {
    "reason": "StartError",
    "message": 'failed to start: exec: "nosuchcommand": executable file not found in $PATH\n\x1b[2J',
    "exitCode": 128,
}


def test_a_command_that_never_ran_is_explained_in_the_kubelets_words(api: ServedApi) -> None:
    api.change(lambda server: put_job(server, status=ended("Failed", failed=1)))
    api.change(lambda server: put_pod(server, phase="Failed", terminated=START_ERROR))
    why = 'StartError: failed to start: exec: "nosuchcommand": executable file not found in $PATH'
    described = tranche(api, "job", "describe", "train").stdout
    assert "Failed (exit code 128)" in described
    assert f"train-0-abcde: {why}" in described
    for follow in ((), ("--follow",)):
        said = tranche(api, "job", "logs", "train", *follow).stderr
        assert f"train-0-abcde: {why}" in said
        assert "\x1b" not in said


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ({"terminated": {"reason": "OOMKilled", "exitCode": 137}}, "OOMKilled"),
        ({"terminated": {"reason": "Error", "exitCode": 1}}, ""),
        ({"terminated": {"reason": "Completed", "exitCode": 0}}, ""),
        ({"running": {}}, ""),
        ({"waiting": {"reason": "ContainerCreating"}}, ""),
        ({"waiting": {"reason": "ErrImagePull", "message": "no such host"}}, "ErrImagePull: no such host"),
    ],
)
def test_the_kubelets_word_is_shown_where_the_command_does_not_speak_for_itself(
    status: dict[str, Any], word: str
) -> None:
    assert decode_job_pod({"status": {"containerStatuses": [{"state": status}]}}).kubelets_word == word


@pytest.mark.parametrize("word", ["pod/", "pod/a/log", "POD/Train", "job/train", "pods/../x"])
def test_explain_refuses_what_is_no_pods_name(api: ServedApi, word: str) -> None:
    assert tranche(api, "explain", word, code=2).stderr.startswith(("error: '", "error: cannot explain '"))
    assert not api.server.requests


@pytest.mark.parametrize("kind", ["pod", "pods", "po", "POD"])
def test_explain_takes_kubectls_words_for_pods(api: ServedApi, kind: str) -> None:
    assert "pod 'train-0' not found" in tranche(api, "explain", f"{kind}/train-0", code=42).stderr


def test_explain_takes_a_pod_or_a_request_of_this_machine(api: ServedApi) -> None:
    assert "pod 'train-0' not found" in tranche(api, "explain", "pod/train-0", code=42).stderr
    assert "apply only to pods" in tranche(api, "explain", "--gpus", "1", "-n", "x", code=2).stderr


def kubectl_in(folder: Path) -> str:
    program = folder / "kubectl"
    program.write_text('#!/bin/sh\nprintf "%s " "$@"\n')
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_attach_and_exec_hand_over_to_kubectl(api: ServedApi, tmp_path: Path) -> None:
    path = kubectl_in(tmp_path)
    api.change(put_job)
    assert "no pod of job team-a/train is running" in tranche(api, "job", "attach", "train", code=42, PATH=path).stderr
    api.change(put_pod)
    assert tranche(api, "job", "attach", "train", PATH=path).stdout == "-n team-a attach train-0-abcde -c main "
    done = tranche(
        api, "job", "exec", "train", "--kubeconfig", str(api.kubeconfig), "--", "nvidia-smi", "-L", PATH=path
    )
    words = f"--kubeconfig {api.kubeconfig} -n team-a exec --stdin train-0-abcde -c main -- nvidia-smi -L "
    assert done.stdout == words


def test_attach_without_kubectl_says_what_to_do(api: ServedApi, tmp_path: Path) -> None:
    done = tranche(api, "job", "attach", "train", code=127, PATH=str(tmp_path))
    assert "needs kubectl" in done.stderr
    assert "tranche job logs -f train" in done.stderr


def test_kubectl_runs_the_same_commands_under_its_own_name() -> None:
    script = "from tranche.cli.start import kubectl_main; kubectl_main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "job", "list", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: kubectl tranche job list [OPTIONS]")
