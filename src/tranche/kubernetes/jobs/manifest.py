"""A job as plain Kubernetes objects: the template of its claim, and the Job; without claims the Job alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tranche.kubernetes.claims.annotations import annotations_of
from tranche.kubernetes.claims.spec import REQUEST_NAME, ClaimSpec
from tranche.kubernetes.claims.vocabulary import JOB_LABEL, SHARE_GATE, SHARE_RESOURCE
from tranche.kubernetes.jobs.job_request import JobRequest

REQUEST_ANNOTATION = "tranche.dev/request"
"""The annotation of a Job that holds the request, as the options that make it."""

CONTAINER = "main"
"""The name of a job's one container."""


def objects_of(wish: JobRequest, claim: ClaimSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ResourceClaimTemplate and the Job."""
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": _metadata(wish),
        "spec": {"metadata": {"labels": _labels(wish)}, "spec": {"devices": claim.devices}},
    }
    return template, _job(wish, gated=False)


def gated_job(wish: JobRequest) -> dict[str, Any]:
    """The Job for a cluster without claims: its pods wait at a gate until each has a chosen share."""
    return _job(wish, gated=True)


def _job(wish: JobRequest, *, gated: bool) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**_metadata(wish), "annotations": {REQUEST_ANNOTATION: str(wish.request)}},
        "spec": dict(_job_spec(wish, gated=gated)),
    }


def _metadata(wish: JobRequest) -> dict[str, Any]:
    return {"name": wish.name, "namespace": wish.namespace, "labels": _labels(wish)}


def _labels(wish: JobRequest) -> dict[str, str]:
    """A new object each time, so that YAML needs no anchors."""
    return {JOB_LABEL: wish.name}


def _job_spec(wish: JobRequest, *, gated: bool) -> Iterator[tuple[str, Any]]:
    yield "parallelism", wish.parallelism
    yield "completions", wish.completions
    if wish.completions > 1:
        yield "completionMode", "Indexed"
    # The Job does not retry a failed command, but it does replace a pod whose node went away or was drained.
    yield "backoffLimit", 0
    drained = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    yield "podFailurePolicy", {"rules": [drained]}
    asks = {"annotations": annotations_of(wish.request)} if gated else {}
    yield "template", {"metadata": {"labels": _labels(wish), **asks}, "spec": dict(_pod_spec(wish, gated=gated))}


def _pod_spec(wish: JobRequest, *, gated: bool) -> Iterator[tuple[str, Any]]:
    yield "restartPolicy", "Never"
    if wish.node_selector:
        yield "nodeSelector", dict(wish.node_selector)
    # What the API server adds to pods that ask for nvidia.com/gpu, where nodes are reserved for such pods.
    yield "tolerations", [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    if gated:
        yield "schedulingGates", [{"name": SHARE_GATE}]
        resources: dict[str, Any] = {"limits": {SHARE_RESOURCE: "1"}}
    else:
        yield "resourceClaims", [{"name": REQUEST_NAME, "resourceClaimTemplateName": wish.name}]
        resources = {"claims": [{"name": REQUEST_NAME}]}
    yield "containers", [dict(_container(wish, resources))]
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


def _container(wish: JobRequest, resources: dict[str, Any]) -> Iterator[tuple[str, Any]]:
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
    yield "resources", resources
    if wish.volumes:
        yield (
            "volumeMounts",
            [
                {"name": f"volume-{number}", "mountPath": each.path} | ({"readOnly": True} if each.read_only else {})
                for number, each in enumerate(wish.volumes)
            ],
        )


def _escaped(text: str) -> str:
    """Kubernetes expands $(NAME) in commands and variables, and $$ to $; the user's shell has already expanded what was meant."""
    return re.sub(r"\$(?=[$(])", r"$$", text)
