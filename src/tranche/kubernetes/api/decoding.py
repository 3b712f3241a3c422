"""Converts API objects between JSON and values. Pure; what is absent or null in the JSON is empty in the value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from tranche.core.printable import shortened
from tranche.kubernetes.api.node_rules import Taint, Toleration
from tranche.kubernetes.api.objects import (
    ConditionStatus,
    DaemonSet,
    KubeEventType,
    KubeNode,
    KubePod,
    NodeCondition,
    PodRef,
    runs_agent,
)

Json = Mapping[str, Any]


def decode_node(raw: Json) -> KubeNode:
    """A `v1.Node`."""
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    info = status.get("nodeInfo") or {}
    return KubeNode(
        name=meta.get("name", ""),
        uid=meta.get("uid", ""),
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        taints=tuple(map(Taint.decode, spec.get("taints") or ())),
        unschedulable=bool(spec.get("unschedulable")),
        conditions=tuple(_decode_condition(condition) for condition in status.get("conditions") or ()),
        capacity=status.get("capacity") or {},
        allocatable=status.get("allocatable") or {},
        os_image=info.get("osImage") or "",
        container_runtime=info.get("containerRuntimeVersion") or "",
        kubelet_version=info.get("kubeletVersion") or "",
        kernel_version=info.get("kernelVersion") or "",
        architecture=info.get("architecture") or "",
    )


def decode_daemon_set(raw: Json) -> DaemonSet:
    """An `apps/v1.DaemonSet`."""
    meta, spec = part(raw, "metadata"), part(raw, "spec")
    pod = part(part(spec, "template"), "spec")
    containers = pod.get("containers") or ()
    words = [
        (tuple(map(str, each.get("command") or ())), tuple(map(str, each.get("args") or ()))) for each in containers
    ]
    agents = (each for each in words if runs_agent((*each[0], *each[1])) or (not each[0] and each[1][:1] == ("agent",)))
    command, arguments = next(agents, next(iter(words), ((), ())))
    return DaemonSet(
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        images=tuple(str(each.get("image") or "") for each in containers),
        command=command,
        arguments=arguments,
        service_account=str(pod.get("serviceAccountName") or "default"),
        selector={str(key): str(value) for key, value in part(part(spec, "selector"), "matchLabels").items()},
        tolerations=tuple(map(Toleration.decode, pod.get("tolerations") or ())),
        version=str(part(meta, "labels").get("app.kubernetes.io/version") or ""),
        desired=int(part(raw, "status").get("desiredNumberScheduled") or 0),
        deleting=meta.get("deletionTimestamp") is not None,
    )


def decode_pod(raw: Json) -> KubePod:
    """A `v1.Pod`."""
    meta = raw.get("metadata") or {}
    owners = [owner for owner in meta.get("ownerReferences") or () if owner.get("controller")]
    return KubePod(
        ref=PodRef(meta.get("namespace", ""), meta.get("name", "")),
        uid=meta.get("uid", ""),
        phase=(raw.get("status") or {}).get("phase", ""),
        owner_kind=owners[0].get("kind", "") if owners else "",
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        node_selector=(raw.get("spec") or {}).get("nodeSelector") or {},
        terminating=meta.get("deletionTimestamp") is not None,
        resources=frozenset(_resources(raw)),
        claims=frozenset(_claims(raw)),
    )


def claimed_resources(raw: Json) -> frozenset[tuple[str, str]]:
    """The extended resources of a `v1.Pod` that a claim serves instead of a device plugin, each as (container, resource)."""
    return frozenset(
        (str(each.get("containerName")), str(each.get("resourceName")))
        for each in _extended(raw).get("requestMappings") or ()
    )


def _extended(raw: Json) -> Json:
    """The scheduler's status of the claim that it made for the pod's extended resources."""
    return (raw.get("status") or {}).get("extendedResourceClaimStatus") or {}


def _resources(raw: Json) -> Iterator[str]:
    spec, claimed = raw.get("spec") or {}, claimed_resources(raw)
    for containers in ("initContainers", "containers"):
        for container in spec.get(containers) or ():
            for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
                if str(amount) != "0" and (container.get("name"), name) not in claimed:
                    yield name


def _claims(raw: Json) -> Iterator[str]:
    """The claims that the pod names, those made from its templates, and the one made for its extended resources."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    made = (*(status.get("resourceClaimStatuses") or ()), _extended(raw))
    for each in (*(spec.get("resourceClaims") or ()), *made):
        if name := each.get("resourceClaimName"):
            yield name


def encode_condition(condition: NodeCondition, *, now: datetime, since: str) -> Json:
    """A condition in the node status' form; `since` is the timestamp of its last status change."""
    return {
        "type": condition.type,
        "status": condition.status.value,
        "reason": condition.reason,
        "message": shortened(condition.message),
        "lastHeartbeatTime": timestamp(now),
        "lastTransitionTime": since,
    }


def encode_event(
    name: str,
    about: KubeNode | PodRef,
    uid: str,
    source: Json,
    severity: KubeEventType,
    reason: str,
    message: str,
    *,
    now: datetime,
) -> Json:
    """A `v1.Event` about the node or pod with that uid: in the pod's namespace, or the one for events about nodes."""
    namespace = about.namespace if isinstance(about, PodRef) else "default"
    place = {"kind": "Pod", "namespace": namespace} if isinstance(about, PodRef) else {"kind": "Node"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", **place, "name": about.name, "uid": uid},
        "type": severity.value,
        "reason": reason,
        "message": shortened(message),
        "source": source,
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "count": 1,
    }


def encode_eviction(pod: PodRef, uid: str) -> Json:
    """A `policy/v1.Eviction` of that pod alone, even if another pod has its name by now."""
    meta = {"namespace": pod.namespace, "name": pod.name}
    options = {"preconditions": {"uid": uid}}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}


def part(raw: Json, key: str) -> Json:
    """The object under that key; empty where the value is no object."""
    value = raw.get(key)
    return value if isinstance(value, Mapping) else {}


def timestamp(at: datetime) -> str:
    """RFC 3339 in seconds, as the API server writes it; the time must be in UTC."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def raw_condition(raw_node: Json, type_: str) -> Json | None:
    """The condition of that type as the API server has it."""
    conditions = (raw_node.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == type_), None)


def _decode_condition(raw: Json) -> NodeCondition:
    status = raw.get("status")  # the API server takes any word
    return NodeCondition(
        type=raw.get("type", ""),
        status=ConditionStatus(status) if status in set(ConditionStatus) else ConditionStatus.UNKNOWN,
        reason=raw.get("reason", ""),
        message=raw.get("message", ""),
        since=moment(raw.get("lastTransitionTime")),
    )


def moment(text: object) -> datetime | None:
    """The moment that an object names; None for anything else."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None
