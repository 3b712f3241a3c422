"""Turns a pod that asks by annotations into one that asks by a claim, or that waits for its share at a scheduling gate: a JSON
patch, empty the second time. What a queue counts before it has pods gets the claim in its pod templates. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tranche.core.errors import UsageError
from tranche.kubernetes.api.decoding import Json, part
from tranche.kubernetes.api.objects import MIRROR_POD_ANNOTATION
from tranche.kubernetes.claims.annotations import CONTAINER, AnnotatedRequest, pod_demand
from tranche.kubernetes.claims.vocabulary import PODSET_LABEL, SHARE_GATE, SHARE_RESOURCE
from tranche.kubernetes.node.resources import is_device_resource

POD_CLAIM = "tranche"
"""The pod's name for its claim."""

TEMPLATE_LABEL = "tranche.dev/claim-template"
"""The pod's label that names the template of its claim; on a template, its own name."""

REQUEST_ANNOTATION = "tranche.dev/request"
USED_ANNOTATION = "tranche.dev/last-used"

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_TEMPLATE_NAME = re.compile(r"tranche-[0-9a-f]{16}", re.ASCII)
_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "Job": ("template",),
    "JobSet": ("replicatedJobs/*/template/spec/template",),
    "PyTorchJob": ("pytorchReplicaSpecs/*/template",),
    "RayJob": ("rayClusterSpec/headGroupSpec/template", "rayClusterSpec/workerGroupSpecs/*/template"),
}
"""Below `spec`, where such an object has its pod templates. Sources: batch/v1, and the API types of JobSet v1alpha2, Kubeflow's
training operator v1 and KubeRay v1.
"""
_KINDS = ("initContainers", "containers")


def demand_of(pod: Json) -> AnnotatedRequest | None:
    """What a new pod asks for by annotations; None when there is nothing to do for it.

    UsageError as `pod_demand`, and for a pod that itself states what was chosen for it.
    """
    annotations = _annotations(pod)
    if MIRROR_POD_ANNOTATION in annotations:
        return None  # the kubelet runs such a pod regardless of its object
    if SHARE_GATE in annotations:
        raise UsageError(
            f"only the controller may set the annotation {SHARE_GATE}",
            hint="remove it, and request a share, for example with tranche.dev/gpu-memory: 4Gi",
        )
    return pod_demand(annotations)


def template_name(devices: Mapping[str, Any]) -> str:
    """The name of the template of such a claim: equal requests give equal names."""
    text = json.dumps(devices, sort_keys=True, separators=(",", ":"))
    return f"tranche-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def claim_template(namespace: str, devices: Mapping[str, Any], request: str, now: str) -> Json:
    """A `ResourceClaimTemplate` of that claim, used at `now`."""
    name = template_name(devices)
    in_order = json.loads(json.dumps(devices, sort_keys=True))  # to the API server, another order is another config
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {TEMPLATE_LABEL: name, "app.kubernetes.io/managed-by": "tranche-controller"},
            "annotations": {REQUEST_ANNOTATION: request, USED_ANNOTATION: now},
        },
        "spec": {"spec": {"devices": in_order}},
    }


def injection(
    pod: Json, demand: AnnotatedRequest, template: str, take_over: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The JSON patch that gives the pod its claim, by the template of that name; empty when it has it.

    A pod that names one of the schedulers `take_over` gets the cluster's own, because no other knows claims of Tranche.

    Raises:
        UsageError: the pod asks for GPUs in another way too, has no such container, or is placed already.
    """
    spec = pod.get("spec") or {}
    kind, position, container = _chosen_container(pod, demand)
    return [
        *_label(pod, template),
        *_pod_claim(spec, template),
        *_container_claim(f"/spec/{kind}/{position}", container),
        *_scheduler_patch(spec, take_over),
    ]


def gating(pod: Json, demand: AnnotatedRequest, take_over: Collection[str] = ()) -> list[dict[str, Any]]:
    """The JSON patch that makes the pod wait and its container ask for the share; empty when both are already so.

    A pod that names one of the schedulers in `take_over` gets the cluster's own.

    Raises:
        UsageError: the pod also asks for GPUs in another way, has no such container, or is already placed.
    """
    spec = pod.get("spec") or {}
    kind, position, container = _chosen_container(pod, demand)
    if kind == "initContainers":
        raise UsageError(
            f"'{container.get('name')}' is an init container, but only a regular container can receive a share",
            hint="name a container in spec.containers",
        )
    return [*_gate(spec), *_resource(f"/spec/{kind}/{position}", container), *_scheduler_patch(spec, take_over)]


def asks_for_share(change: Mapping[str, Any]) -> bool:
    """Whether that operation of `gating` makes a container ask for the share."""
    return str(change["path"]).endswith("/resources")


def _gate(spec: Json) -> list[dict[str, Any]]:
    gates = spec.get("schedulingGates") or ()
    if any(each.get("name") == SHARE_GATE for each in gates):
        return []
    wanted = {"name": SHARE_GATE}
    return [_added("/spec/schedulingGates/-", wanted) if gates else _added("/spec/schedulingGates", [wanted])]


def _resource(path: str, container: Json) -> list[dict[str, Any]]:
    resources = container.get("resources") or {}
    if (resources.get("limits") or {}).get(SHARE_RESOURCE) == "1":
        return []
    limits = {**(resources.get("limits") or {}), SHARE_RESOURCE: "1"}
    requests = {**(resources.get("requests") or {}), SHARE_RESOURCE: "1"}
    return [_added(f"{path}/resources", {**resources, "limits": limits, "requests": requests})]


def _label(pod: Json, template: str) -> list[dict[str, Any]]:
    labels = (pod.get("metadata") or {}).get("labels")
    if (labels or {}).get(TEMPLATE_LABEL) == template:
        return []
    if not labels:
        return [_added("/metadata/labels", {TEMPLATE_LABEL: template})]
    return [_added(f"/metadata/labels/{TEMPLATE_LABEL.replace('/', '~1')}", template)]


def _pod_claim(spec: Json, template: str) -> list[dict[str, Any]]:
    wanted = {"name": POD_CLAIM, "resourceClaimTemplateName": template}
    claims = spec.get("resourceClaims") or ()
    if not claims:
        return [_added("/spec/resourceClaims", [wanted])]
    for position, claim in enumerate(claims):
        if claim.get("name") != POD_CLAIM:
            continue
        named = str(claim.get("resourceClaimTemplateName") or "")
        if not _TEMPLATE_NAME.fullmatch(named):
            raise UsageError(
                f"the pod has its own claim named '{POD_CLAIM}' and annotations that request a share",
                hint="remove the annotations, or rename the claim",
            )
        return (
            []
            if named == template
            else [{"op": "replace", "path": f"/spec/resourceClaims/{position}", "value": wanted}]
        )
    return [_added("/spec/resourceClaims/-", wanted)]


def _container_claim(path: str, container: Json) -> list[dict[str, Any]]:
    wanted = {"name": POD_CLAIM}
    resources = container.get("resources")
    if not resources:
        return [_added(f"{path}/resources", {"claims": [wanted]})]
    claims = resources.get("claims") or ()
    if any(claim.get("name") == POD_CLAIM for claim in claims):
        return []
    return [_added(f"{path}/resources/claims/-", wanted) if claims else _added(f"{path}/resources/claims", [wanted])]


def _scheduler_patch(spec: Json, take_over: Collection[str]) -> list[dict[str, Any]]:
    """Gives a pod that names one of these schedulers the cluster's own."""
    if spec.get("schedulerName") not in take_over:
        return []
    return [{"op": "replace", "path": "/spec/schedulerName", "value": "default-scheduler"}]


def _chosen_container(pod: Json, demand: AnnotatedRequest) -> tuple[str, int, Json]:
    """The container that gets the share: the named one, else the one that kubectl takes, else the first.

    UsageError for a pod that also asks for GPUs in another way, has no such container, or names its node.
    """
    spec, name = pod.get("spec") or {}, demand.container
    _refuse_second_demand(spec)
    if spec.get("nodeName"):
        raise UsageError(
            f"the pod sets nodeName ({spec['nodeName']}), but only the scheduler can assign a share",
            hint="use the nodeSelector kubernetes.io/hostname instead",
        )
    there = [(kind, position, each) for kind in _KINDS for position, each in enumerate(spec.get(kind) or ())]
    by_name = {str(each.get("name")): (kind, position, each) for kind, position, each in there}
    if name:
        if name not in by_name:
            raise UsageError(
                f"{CONTAINER} names container '{name}', which the pod does not have",
                hint=f"the pod's containers are: {', '.join(by_name)}",
            )
        return by_name[name]
    usual = _annotations(pod).get(_DEFAULT_CONTAINER, "")
    if usual in by_name:
        return by_name[usual]
    first = next((each for each in there if each[0] == "containers"), None)
    if first is None:
        raise UsageError("the pod has no containers")
    return first


def _refuse_second_demand(spec: Json) -> None:
    """UsageError for a pod that also asks for devices by a resource."""
    for kind in _KINDS:
        for container in spec.get(kind) or ():
            resources = container.get("resources") or {}
            for name in (*(resources.get("limits") or ()), *(resources.get("requests") or ())):
                if is_device_resource(str(name)):
                    raise UsageError(
                        f"container '{container.get('name')}' requests {name}, but the pod's annotations also "
                        "request a share",
                        hint="keep only one of them",
                    )


def _annotations(pod: Json) -> Mapping[str, str]:
    return (pod.get("metadata") or {}).get("annotations") or {}


def _added(path: str, value: object) -> dict[str, Any]:
    """One operation of a JSON patch."""
    return {"op": "add", "path": path, "value": value}


def pod_templates(kind: str, raw: Json) -> Iterator[tuple[str, Json]]:
    """The pod templates of a Job, or of what makes Jobs or pods, each with its path in the object."""
    for way in _TEMPLATES.get(kind, ()):
        yield from _below(part(raw, "spec"), way.split("/"), "/spec")


def template_of(pod: Json) -> str:
    """The template of the claim that an earlier answer gave the pod; "" without one."""
    claims = part(pod, "spec").get("resourceClaims") or ()
    names = (str(each.get("resourceClaimTemplateName") or "") for each in claims if each.get("name") == POD_CLAIM)
    return next((each for each in names if _TEMPLATE_NAME.fullmatch(each)), "")


def is_counted(pod: Json) -> bool:
    """Whether Kueue has counted the pod already, by the template that it comes from."""
    return PODSET_LABEL in part(part(pod, "metadata"), "labels")


def _below(raw: Any, way: Sequence[str], path: str) -> Iterator[tuple[str, Json]]:
    if not way:
        if isinstance(raw, Mapping):
            yield path, raw
        return
    key, *rest = way
    found: list[tuple[str, Any]] = []
    if key != "*":
        found = [(key, raw[key])] if isinstance(raw, Mapping) and key in raw else []
    elif isinstance(raw, Mapping):
        found = [(str(name).replace("~", "~0").replace("/", "~1"), each) for name, each in raw.items()]
    elif isinstance(raw, list):
        found = [(str(number), each) for number, each in enumerate(raw)]
    for name, each in found:
        yield from _below(each, rest, f"{path}/{name}")


def names_used(pods: Sequence[Json], workloads: Sequence[Json] = ()) -> frozenset[tuple[str, str]]:
    """Namespace and name of the templates of pods that have not ended, and of what waits in Kueue's queues."""
    found = set()
    for pod in pods:
        name = part(part(pod, "metadata"), "labels").get(TEMPLATE_LABEL)
        if name and part(pod, "status").get("phase") not in ("Succeeded", "Failed"):
            found.add((_namespace(pod), str(name)))
    for each in workloads:
        conditions = part(each, "status").get("conditions") or ()
        if any(condition.get("type") == "Finished" and condition.get("status") == "True" for condition in conditions):
            continue
        for pod_set in part(each, "spec").get("podSets") or ():
            claims = part(part(pod_set, "template"), "spec").get("resourceClaims") or ()
            found |= {(_namespace(each), str(claim.get("resourceClaimTemplateName"))) for claim in claims}
    return frozenset(found)


def _namespace(raw: Json) -> str:
    return str(part(raw, "metadata").get("namespace") or "")
