"""What a pod asks for whose share a controller chooses, and why it could never be handed one. Pure.

A node's agent hands a share to a container that stays, with the one unit of the resource that the kubelet has given it. Whatever
else a pod asks for it refuses for ever, so nothing may be chosen for such a pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tranche.core.errors import UsageError
from tranche.core.request import Request
from tranche.kubernetes.claims.annotations import pod_demand
from tranche.kubernetes.claims.quantity import read_quantity
from tranche.kubernetes.claims.vocabulary import SHARE_GATE, SHARE_RESOURCE


@dataclass(frozen=True, slots=True)
class GatedRequest:
    """`request` is None where nothing of the kind is asked for, or where it cannot be told.

    `wrong` says why nothing can be chosen for the pod; `never` why its node would refuse whatever was chosen.
    """

    request: Request | None = None
    wrong: str = ""
    never: str = ""


def gate_demand(annotations: Mapping[str, Any], spec: Mapping[str, Any]) -> GatedRequest:
    """What a pod with these annotations asks for, if it waits at our gate or has asked for the resource."""
    waits = any(each.get("name") == SHARE_GATE for each in spec.get("schedulingGates") or ())
    asking = tuple(_asking(spec))
    if not waits and not asking:
        return GatedRequest()
    never = _never(asking)
    try:
        demand = pod_demand(annotations)
    except UsageError as error:
        return GatedRequest(None, error.message, never)
    if demand is None:
        return GatedRequest(None, "it waits for a share, and no annotation says for which", never)
    return GatedRequest(demand.request, never, never)


def _never(asking: tuple[tuple[str, int, bool], ...]) -> str:
    if not asking:
        return f"no container asks for {SHARE_RESOURCE}, so none can be handed the share"
    for name, amount, stays in asking:
        if not stays:
            return f"init container '{name}' asks for {SHARE_RESOURCE}, and a share is handed to a container that stays"
        if amount != 1:
            return f"container '{name}' asks for {amount} of {SHARE_RESOURCE}, and a container has one share"
    return ""


def _asking(spec: Mapping[str, Any]) -> Iterator[tuple[str, int, bool]]:
    """The containers that ask for the resource, for how many, and whether they stay."""
    for kind in ("initContainers", "containers"):
        for each in spec.get(kind) or ():
            resources = each.get("resources") or {}
            asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(SHARE_RESOURCE, "0")
            if amount := read_quantity(asked):
                yield str(each.get("name") or ""), amount, kind == "containers" or each.get("restartPolicy") == "Always"
