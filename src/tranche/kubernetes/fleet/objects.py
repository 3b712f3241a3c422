"""Nodes, claims and pods as an explanation needs them, decoded from API objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tranche.core.errors import UsageError
from tranche.core.request import Request
from tranche.kubernetes.api.decoding import part
from tranche.kubernetes.api.node_rules import NodeTerm, Taint, Toleration, decode_terms
from tranche.kubernetes.claims.annotations import gate_demand
from tranche.kubernetes.claims.claim import is_pod
from tranche.kubernetes.claims.node_mode import NodeMode, node_mode
from tranche.kubernetes.claims.quantity import gpu_counts, read_quantity, resource_amounts
from tranche.kubernetes.claims.spec import read_share_request
from tranche.kubernetes.claims.vocabulary import (
    DRIVER,
    MODE_LABEL,
    SHARE_GATE,
    SHARE_RESOURCE,
    CapacityName,
)

_PODS = 3
"""How many of a claim's pods are named."""
EXTENDED_RESOURCES = "extended resources"
"""Stands for a pod's own name of the claim that the scheduler makes for its extended resources."""


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node. `allocatable` are the amounts of its resources, CPU in thousandths; or what pods leave of them, where that is
    tracked. `hands_out` says that its agent hands out shares that a controller chooses.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    allocatable: Mapping[str, int] = field(default_factory=dict)
    uid: str = ""
    hands_out: bool = False

    @property
    def resources(self) -> Mapping[str, int]:
        """What the device plugin offers of it, by extended resource."""
        return {name: count for name, count in gpu_counts(self.allocatable).items() if count}

    @property
    def mode(self) -> NodeMode | None:
        """The administrator's word; None where it is no mode."""
        return node_mode(self.labels)

    @property
    def mode_text(self) -> str:
        """The mode, for people; an unknown word as it is."""
        return f"'{self.labels.get(MODE_LABEL)}' (unknown)" if self.mode is None else str(self.mode)


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device that a claim has. `memory` in bytes and `compute` in percent are its part of a shared device."""

    node: str
    device: str
    request: str = ""
    memory: int | None = None
    compute: int | None = None


@dataclass(frozen=True, slots=True)
class FleetClaim:
    """A resource claim. `requests` and `constraints` are as the API has them; `given` are devices of Tranche's driver.

    `asked` is the request that it was made from, as options; empty where it has none, and `ignored` says why its configuration
    for Tranche's driver is invalid, if it is. `pods` are the names of the pods that it is reserved for. One without a name stands
    for what a pod has without a claim.
    """

    namespace: str
    name: str
    uid: str = ""
    asked: str = ""
    requests: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    constraints: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    allocated: bool = False
    given: tuple[ClaimedDevice, ...] = ()
    pods: tuple[str, ...] = ()
    ignored: str = ""

    @property
    def holder(self) -> str:
        """Its holder, for people."""
        if not self.pods:
            return f"claim {self.namespace}/{self.name}"
        names = ", ".join(f"{self.namespace}/{each}" for each in self.pods[:_PODS])
        more = len(self.pods) - _PODS
        return f"pod{'s' if len(self.pods) > 1 else ''} {names}{f' and {more} more' if more > 0 else ''}"


@dataclass(frozen=True, slots=True)
class FleetPod:
    """A pod. `claims` are the names of its existing claims, by its own names for them; `templates` likewise.

    `created` is its time of creation, RFC 3339. `message` is the scheduler's reason for not binding it. `affinity` are terms, one
    of which a node has to meet, if there are any. `prepared` says that its node has handed it its devices. `refusal` is the
    kubelet's reason for not doing so, or Kubernetes' for not creating its claim; empty without one, and None where events may not
    be read. `limits` are how many it asks for of each extended resource of GPUs. `by_gate` is what it asks for where a controller
    chooses its share, `gate_problem` why none can be chosen, and `chosen` the choice as written on the pod.
    """

    namespace: str
    name: str
    phase: str = "Pending"
    node: str = ""
    gated: bool = False
    message: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    claims: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    by_gate: Request | None = None
    gate_problem: str = ""
    chosen: str = ""
    uid: str = ""
    prepared: bool = False
    refusal: str | None = ""
    created: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def asks_at_gate(self) -> bool:
        """Whether it asks for a share that a controller chooses, even if none can be chosen."""
        return self.by_gate is not None or bool(self.gate_problem)

    @property
    def asks(self) -> bool:
        """Whether it asks for something that may be a GPU."""
        return bool(self.asks_at_gate or self.claims or self.templates or self.limits)

    @property
    def made_by_others(self) -> tuple[str, ...]:
        """The names of its claims that come from others: neither from a template nor from the scheduler."""
        own = {*self.templates, EXTENDED_RESOURCES}
        return tuple(claim for name, claim in self.claims.items() if name not in own)


def decode_fleet_node(raw: Mapping[str, Any]) -> FleetNode:
    """A `v1.Node`."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    ready: Mapping[str, Any] = next(
        (each for each in status.get("conditions") or () if each.get("type") == "Ready"), {}
    )
    return FleetNode(
        name=str(meta.get("name") or ""),
        labels={str(key): str(value) for key, value in part(meta, "labels").items()},
        taints=tuple(Taint.decode(each) for each in spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        ready=ready.get("status") == "True",
        allocatable=dict(resource_amounts(part(status, "allocatable"))),
        uid=str(meta.get("uid") or ""),
        hands_out=str(part(status, "capacity").get(SHARE_RESOURCE, "0")) != "0",
    )


def decode_fleet_claim(raw: Mapping[str, Any]) -> FleetClaim:
    """A `resource.k8s.io/v1.ResourceClaim`."""
    meta, status = part(raw, "metadata"), part(raw, "status")
    devices = part(part(raw, "spec"), "devices")
    results = part(part(status, "allocation"), "devices").get("results") or ()
    asked, ignored = _asked(devices)
    return FleetClaim(
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        uid=str(meta.get("uid") or ""),
        asked=asked,
        requests=tuple(devices.get("requests") or ()),
        constraints=tuple(devices.get("constraints") or ()),
        allocated="allocation" in status,
        given=tuple(_given(each) for each in results if each.get("driver") == DRIVER),
        pods=tuple(str(each.get("name")) for each in status.get("reservedFor") or () if is_pod(each)),
        ignored=ignored,
    )


def decode_fleet_pod(raw: Mapping[str, Any]) -> FleetPod:
    """A `v1.Pod`."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    scheduled: Mapping[str, Any] = next(
        (each for each in status.get("conditions") or () if each.get("type") == "PodScheduled"), {}
    )
    asked = {str(each.get("name")): each for each in spec.get("resourceClaims") or ()}
    made = {str(each.get("name")): each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or ()}
    names = {name: made.get(name) or each.get("resourceClaimName") for name, each in asked.items()}
    demand = gate_demand(part(meta, "annotations"), spec)
    extended = part(status, "extendedResourceClaimStatus").get("resourceClaimName")
    return FleetPod(
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        phase=str(status.get("phase") or "Pending"),
        node=str(spec.get("nodeName") or ""),
        gated=bool(spec.get("schedulingGates")),
        message=str(scheduled.get("message") or "") if scheduled.get("status") == "False" else "",
        node_selector={str(key): str(value) for key, value in part(spec, "nodeSelector").items()},
        affinity=decode_terms(spec),
        tolerations=tuple(Toleration.decode(each) for each in spec.get("tolerations") or ()),
        claims={name: str(claim) for name, claim in {**names, EXTENDED_RESOURCES: extended}.items() if claim},
        templates={
            name: str(each["resourceClaimTemplateName"])
            for name, each in asked.items()
            if each.get("resourceClaimTemplateName")
        },
        limits=_limits(spec),
        by_gate=demand.request,
        gate_problem=demand.wrong,
        chosen=str(part(meta, "annotations").get(SHARE_GATE) or ""),
        uid=str(meta.get("uid") or ""),
        prepared=_prepared(status),
        created=str(meta.get("creationTimestamp") or ""),
    )


def _prepared(status: Mapping[str, Any]) -> bool:
    """Whether the kubelet has prepared its claims: it makes a pod's sandbox and starts containers only after that."""
    if status.get("phase") not in ("Pending", None):
        return True
    if any(
        each.get("type") == "PodReadyToStartContainers" and each.get("status") == "True"
        for each in status.get("conditions") or ()
    ):
        return True
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return any(not part(each, "state").keys().isdisjoint(("running", "terminated")) for each in containers)


def _asked(devices: Mapping[str, Any]) -> tuple[str, str]:
    """The request in the driver's configuration, and why an invalid one is ignored."""
    ignored = ""
    for each in devices.get("config") or ():
        opaque = part(each, "opaque")
        if opaque.get("driver") == DRIVER:
            try:
                return str(read_share_request(part(opaque, "parameters"))), ""
            except UsageError as error:
                ignored = error.message  # from another version, or written by others
    return "", ignored


def _given(raw: Mapping[str, Any]) -> ClaimedDevice:
    consumed = part(raw, "consumedCapacity")
    return ClaimedDevice(
        node=str(raw.get("pool") or ""),
        device=str(raw.get("device") or ""),
        request=str(raw.get("request") or ""),
        memory=read_quantity(consumed.get(CapacityName.MEMORY)),
        compute=read_quantity(consumed.get(CapacityName.COMPUTE)),
    )


def _limits(spec: Mapping[str, Any]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for name, count in gpu_counts(part(part(container, "resources"), "limits")).items():
            found[name] = found.get(name, 0) + count
    return {name: count for name, count in found.items() if count}
