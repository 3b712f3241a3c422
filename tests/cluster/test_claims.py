"""The API server's own word on the claims that requests become, and on the jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster.cluster import Cluster

from tests.kubernetes.claims.examples import CARDS, MANY_CARDS, REQUESTS
from tests.kubernetes.jobs.test_manifest import EVERYTHING
from tranche.kubernetes.claims.spec import claim_spec
from tranche.kubernetes.jobs.manifest import objects_of

pytestmark = pytest.mark.cluster

JOBS = "/apis/batch/v1/namespaces/default/jobs"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"


@pytest.mark.parametrize("cards", [CARDS, MANY_CARDS, ()], ids=["two-sizes", "ten-sizes", "none"])
def test_the_api_server_accepts_every_claim_and_drops_no_field_of_it(cluster: Cluster, cards: Any) -> None:
    for request in REQUESTS:
        if not cards and request.compute is not None and str(request).startswith("--gpu "):
            continue  # which is refused by name
        devices = dict(claim_spec(request, cards).devices)
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "request"},
            "spec": {"spec": {"devices": devices}},
        }
        found = cluster.api.request("POST", f"{TEMPLATES}?dryRun=All&fieldValidation=Strict", template)
        accepted = found["spec"]["spec"]["devices"]
        assert _holds(accepted, devices), f"{request}: {devices}\nbecame\n{accepted}"


def test_the_api_server_accepts_a_job_with_everything(cluster: Cluster) -> None:
    for job in (EVERYTHING, replace(EVERYTHING, completions=1, interactive=False)):
        template, made = objects_of(replace(job, namespace="default"), claim_spec(job.request))
        for path, content in ((TEMPLATES, template), (JOBS, made)):
            found = cluster.api.request("POST", f"{path}?dryRun=All&fieldValidation=Strict", content)
            assert _holds(found["spec"], content["spec"]), f"{content}\nbecame\n{found}"


def _holds(found: Any, wanted: Any) -> bool:
    """Whether everything wanted is found; the API server adds defaults."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and _holds(found[key], each) for key, each in wanted.items()
        )
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_holds, found, wanted))
    return bool(found == wanted)
