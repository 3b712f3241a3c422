"""A job as the objects that anyone could apply: the template of its claim, and the Job. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tranche.kubernetes.claims.spec import REQUEST_NAME, ClaimSpec
from tranche.kubernetes.jobs.wish import JobWish

JOB_LABEL = "tranche.dev/job"
"""The label of everything that belongs to a job, the job's name as its value."""

REQUEST_ANNOTATION = "tranche.dev/request"
"""The annotation of a Job that holds the request, as the options that make it."""

CONTAINER = "main"
"""The name of a job's one container."""


def objects_of(wish: JobWish, claim: ClaimSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ResourceClaimTemplate and the Job."""
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": _metadata(wish),
        "spec": {"metadata": {"labels": _labels(wish)}, "spec": {"devices": claim.devices}},
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**_metadata(wish), "annotations": {REQUEST_ANNOTATION: str(wish.request)}},
        "spec": dict(_job_spec(wish)),
    }
    return template, job


def _metadata(wish: JobWish) -> dict[str, Any]:
    return {"name": wish.name, "namespace": wish.namespace, "labels": _labels(wish)}


def _labels(wish: JobWish) -> dict[str, str]:
    """A new object each time, so that YAML needs no anchors."""
    return {JOB_LABEL: wish.name}


def _job_spec(wish: JobWish) -> Iterator[tuple[str, Any]]:
    yield "parallelism", wish.parallelism
    yield "completions", wish.completions
    if wish.completions > 1:
        yield "completionMode", "Indexed"
    # A command that failed is not run again by itself; one whose node went away, or was drained, is.
    yield "backoffLimit", 0
    drained = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    yield "podFailurePolicy", {"rules": [drained]}
    yield "template", {"metadata": {"labels": _labels(wish)}, "spec": dict(_pod_spec(wish))}


def _pod_spec(wish: JobWish) -> Iterator[tuple[str, Any]]:
    yield "restartPolicy", "Never"
    if wish.node_selector:
        yield "nodeSelector", dict(wish.node_selector)
    # What the API server adds to pods that ask for nvidia.com/gpu, where nodes are kept for such pods.
    yield "tolerations", [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    yield "resourceClaims", [{"name": REQUEST_NAME, "resourceClaimTemplateName": wish.name}]
    yield "containers", [dict(_container(wish))]
    if wish.volumes:
        yield (
            "volumes",
            [
                {"name": f"volume-{number}"}
                | (
                    {"hostPath": {"path": each.source}}
                    if each.of_node
                    else {"persistentVolumeClaim": {"claimName": each.source}}
                )
                for number, each in enumerate(wish.volumes)
            ],
        )


def _container(wish: JobWish) -> Iterator[tuple[str, Any]]:
    yield "name", CONTAINER
    yield "image", wish.image
    if wish.command:
        yield "command", [_escaped(word) for word in wish.command]
    if wish.workdir:
        yield "workingDir", wish.workdir
    if wish.environment:
        yield "env", [{"name": name, "value": _escaped(value)} for name, value in wish.environment.items()]
    if wish.interactive:
        yield from (("stdin", True), ("tty", True))
    yield "resources", {"claims": [{"name": REQUEST_NAME}]}
    if wish.volumes:
        yield (
            "volumeMounts",
            [
                {"name": f"volume-{number}", "mountPath": each.path} | ({"readOnly": True} if each.read_only else {})
                for number, each in enumerate(wish.volumes)
            ],
        )


def _escaped(text: str) -> str:
    """Kubernetes expands $(NAME) in commands and variables, and $$ to $; the person's shell has already done what was meant."""
    return re.sub(r"\$(?=[$(])", r"$$", text)
