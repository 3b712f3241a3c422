"""A job as objects: what is in them, and that a command arrives as it was written."""

from __future__ import annotations

import re

import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Golden
from tests.kubernetes.claims.examples import CARDS
from tranche.core.request import parse_request
from tranche.kubernetes.claims.spec import claim_spec
from tranche.kubernetes.jobs.manifest import JobMount, JobRequest, gated_job, objects_of

REQUEST = parse_request(gpu_memory="4Gi")


def wish(**changes: object) -> JobRequest:
    fields = {"name": "train", "namespace": "team-a", "request": REQUEST, "image": "train:1", **changes}
    return JobRequest(**fields)  # type: ignore[arg-type]


EVERYTHING = wish(
    request=parse_request(mig_profile="2g.10gb", count="2"),
    command=("sh", "-c", "echo $HOME $(hostname) $$"),
    node_selector={"zone": "a"},
    environment={"A": "$(B)"},
    volumes=(JobMount("data", "/data", read_only=True), JobMount("/raid", "/raid")),
    workdir="/work",
    interactive=True,
    parallelism=2,
    completions=10,
)


def text_of(job: JobRequest) -> str:
    documents = objects_of(job, claim_spec(job.request, CARDS))
    return yaml.safe_dump_all(documents, sort_keys=False, width=120)


def test_the_smallest_job(golden: Golden) -> None:
    golden("smallest.yaml", text_of(wish(command=("python", "train.py"))))


def test_a_job_with_everything(golden: Golden) -> None:
    golden("everything.yaml", text_of(EVERYTHING))


def test_every_label_is_ours() -> None:
    template, job = objects_of(wish(), claim_spec(REQUEST))
    for labels in (
        template["metadata"]["labels"],
        template["spec"]["metadata"]["labels"],
        job["metadata"]["labels"],
        job["spec"]["template"]["metadata"]["labels"],
    ):
        assert labels == {"tranche.dev/job": "train"}


def test_a_queue_is_named_on_the_job_alone() -> None:
    template, job = objects_of(wish(queue="team-a", priority="high"), claim_spec(REQUEST))
    ours = {"tranche.dev/job": "train"}
    queueing = {"kueue.x-k8s.io/queue-name": "team-a", "kueue.x-k8s.io/priority-class": "high"}
    assert job["metadata"]["labels"] == ours | queueing
    assert template["metadata"]["labels"] == job["spec"]["template"]["metadata"]["labels"] == ours
    assert gated_job(wish(queue="team-a"))["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"


@given(st.lists(st.text(alphabet="$()aB{} ", min_size=1), min_size=1))
def test_kubernetes_expands_nothing_in_a_command(words: list[str]) -> None:
    _, job = objects_of(wish(command=tuple(words)), claim_spec(REQUEST))
    assert [expanded(word) for word in job["spec"]["template"]["spec"]["containers"][0]["command"]] == words


def expanded(text: str) -> str:
    """What the kubelet makes of a word of a command, where no variable has a value."""
    return re.sub(r"\$(\$|\(\w+\))", lambda found: "$" if found[1] == "$" else f"expanded {found[1]}", text)


def test_a_job_whose_pods_wait_at_a_gate(golden: Golden) -> None:
    golden("gated.yaml", yaml.safe_dump(gated_job(EVERYTHING), sort_keys=False, width=120))
