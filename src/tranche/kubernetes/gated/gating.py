"""The JSON patch that makes a pod with annotations wait at a scheduling gate; empty the second time. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tranche.core.errors import UsageError
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.claims.annotations import AnnotatedRequest
from tranche.kubernetes.claims.vocabulary import SHARE_GATE, SHARE_RESOURCE
from tranche.kubernetes.webhook.injection import (
    added,
    chosen_container,
    refuse_placed,
    refuse_second_demand,
    scheduler_patch,
)


def gating(pod: Json, demand: AnnotatedRequest, take_over: Collection[str] = ()) -> list[dict[str, Any]]:
    """The JSON patch that makes the pod wait and its container ask for the share; empty when both are already so.

    A pod that names one of the schedulers in `take_over` gets the cluster's own.

    Raises:
        UsageError: the pod also asks for GPUs in another way, has no such container, or is already placed.
    """
    spec = pod.get("spec") or {}
    refuse_second_demand(spec)
    refuse_placed(spec)
    kind, position, container = chosen_container(pod, demand.container)
    if kind == "initContainers":
        raise UsageError(
            f"'{container.get('name')}' is an init container, but only a regular container can receive a share",
            hint="name one of spec.containers",
        )
    return [*_gate(spec), *_resource(f"/spec/{kind}/{position}", container), *scheduler_patch(spec, take_over)]


def _gate(spec: Json) -> list[dict[str, Any]]:
    gates = spec.get("schedulingGates") or ()
    if any(each.get("name") == SHARE_GATE for each in gates):
        return []
    wanted = {"name": SHARE_GATE}
    return [added("/spec/schedulingGates/-", wanted) if gates else added("/spec/schedulingGates", [wanted])]


def _resource(path: str, container: Json) -> list[dict[str, Any]]:
    resources = container.get("resources") or {}
    if (resources.get("limits") or {}).get(SHARE_RESOURCE) == "1":
        return []
    limits = {**(resources.get("limits") or {}), SHARE_RESOURCE: "1"}
    requests = {**(resources.get("requests") or {}), SHARE_RESOURCE: "1"}
    return [added(f"{path}/resources", {**resources, "limits": limits, "requests": requests})]
