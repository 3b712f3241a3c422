"""API objects as a survey reads them. Only the fields that are named here leave this module: no environment, no secret."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tranche.kubernetes.api.decoding import Json, part
from tranche.kubernetes.api.node_rules import Taint, Toleration
from tranche.kubernetes.claims.vocabulary import is_gpu_resource
from tranche.kubernetes.support.facts import ConditionFacts, ControllerFacts, DaemonSetFacts, PodFacts, SurveyedNode

_OUR_ANNOTATIONS = ("tranche.dev/", "mig-manager.tranche.dev/")


def decode_node(raw: Json) -> SurveyedNode:
    """A `v1.Node`."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    info = part(status, "nodeInfo")
    return SurveyedNode(
        name=_text(meta, "name"),
        labels=_texts(meta, "labels"),
        annotations={
            key: value for key, value in _texts(meta, "annotations").items() if key.startswith(_OUR_ANNOTATIONS)
        },
        taints=tuple(map(Taint.decode, spec.get("taints") or ())),
        conditions=tuple(_condition(each) for each in status.get("conditions") or ()),
        capacity=_counts(part(status, "capacity")),
        allocatable=_counts(part(status, "allocatable")),
        unschedulable=bool(spec.get("unschedulable")),
        kubelet_version=_text(info, "kubeletVersion"),
        kernel_version=_text(info, "kernelVersion"),
        os_image=_text(info, "osImage"),
        container_runtime=_text(info, "containerRuntimeVersion"),
        architecture=_text(info, "architecture"),
    )


def decode_daemon_set(raw: Json) -> DaemonSetFacts:
    """An `apps/v1.DaemonSet`."""
    meta, status = part(raw, "metadata"), part(raw, "status")
    spec = part(part(part(raw, "spec"), "template"), "spec")
    containers = spec.get("containers") or ()
    first = containers[0] if containers else {}
    return DaemonSetFacts(
        namespace=_text(meta, "namespace"),
        name=_text(meta, "name"),
        images=tuple(_text(each, "image") for each in containers),
        command=tuple(map(str, first.get("command") or ())),
        arguments=tuple(map(str, first.get("args") or ())),
        service_account=_text(spec, "serviceAccountName") or "default",
        selector=_texts(part(part(raw, "spec"), "selector"), "matchLabels"),
        tolerations=tuple(map(Toleration.decode, spec.get("tolerations") or ())),
        version=_texts(meta, "labels").get("app.kubernetes.io/version", ""),
        desired=int(status.get("desiredNumberScheduled") or 0),
    )


def decode_controller(raw: Json) -> ControllerFacts | None:
    """An `apps/v1.Deployment` that runs `tranche controller`; None for another."""
    meta, status = part(raw, "metadata"), part(raw, "status")
    spec = part(raw, "spec")
    containers = part(part(spec, "template"), "spec").get("containers") or ()
    words = [
        str(each) for container in containers[:1] for key in ("command", "args") for each in container.get(key) or ()
    ]
    if not words or words[0].rpartition("/")[2] != "tranche" or words[1:2] != ["controller"]:
        return None
    wanted = spec.get("replicas")
    return ControllerFacts(
        _text(meta, "namespace"),
        _text(meta, "name"),
        1 if wanted is None else int(wanted),
        int(status.get("readyReplicas") or 0),
    )


def decode_pod(raw: Json) -> PodFacts:
    """A `v1.Pod` of a DaemonSet."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    statuses = status.get("containerStatuses") or ()
    first = statuses[0] if statuses else {}
    waiting = part(part(first, "state"), "waiting")
    conditions = {_text(each, "type"): each for each in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    return PodFacts(
        namespace=_text(meta, "namespace"),
        name=_text(meta, "name"),
        node=_text(spec, "nodeName") or _wanted_node(spec),
        phase=_text(status, "phase"),
        ready=_text(conditions.get("Ready", {}), "status") == "True",
        waiting=_text(waiting, "reason"),
        restarts=sum(int(each.get("restartCount") or 0) for each in statuses),
        image=_text(first, "image") or next((_text(each, "image") for each in spec.get("containers") or ()), ""),
        image_id=_text(first, "imageID"),
        terminating=meta.get("deletionTimestamp") is not None,
        unschedulable=_text(scheduled, "message") if _text(scheduled, "status") == "False" else "",
    )


def _wanted_node(spec: Json) -> str:
    """The node that a DaemonSet made its pod for: by an affinity, until the scheduler has bound it."""
    affinity = part(part(spec, "affinity"), "nodeAffinity")
    required = part(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    for term in required.get("nodeSelectorTerms") or ():
        for wanted in term.get("matchFields") or ():
            if wanted.get("key") == "metadata.name" and wanted.get("values"):
                return str(wanted["values"][0])
    return ""


def _condition(raw: Json) -> ConditionFacts:
    since = _text(raw, "lastTransitionTime")
    return ConditionFacts(
        _text(raw, "type"), _text(raw, "status"), _text(raw, "reason"), _text(raw, "message"), _moment(since)
    )


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _counts(quantities: Json) -> Mapping[str, int]:
    """The resources of GPUs; each is a whole number, which the API server may write with a suffix."""
    found = {}
    for key, value in quantities.items():
        digits = str(value).removesuffix("k")
        if is_gpu_resource(key) and digits.isdigit():
            found[key] = int(digits) * (1000 if str(value).endswith("k") else 1)
    return found


def _text(raw: Json, key: str) -> str:
    value: Any = raw.get(key)
    return "" if value is None else str(value)


def _texts(raw: Json, key: str) -> Mapping[str, str]:
    return {str(name): str(value) for name, value in part(raw, key).items()}
