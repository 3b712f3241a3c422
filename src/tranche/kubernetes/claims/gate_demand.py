"""The request of a pod whose share a controller chooses, and why the pod could never get one. Pure.

A node's agent hands a share only to a container that keeps running and asks for one unit of the resource. It refuses anything
else a pod asks for, forever, so the controller must choose nothing for such a pod.
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
    """`request` is None where the pod asks for no such share, or where the request is invalid.

    `wrong` says why nothing can be chosen for the pod; `never` why its node would refuse any choice.
    """

    request: Request | None = None
    wrong: str = ""
    never: str = ""


def gate_demand(annotations: Mapping[str, Any], spec: Mapping[str, Any]) -> GatedRequest:
    """The request of a pod with these annotations, if it waits at our gate or asks for the resource."""
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
        return GatedRequest(None, "it waits for a share, but no annotation says which", never)
    return GatedRequest(demand.request, never, never)


def _never(asking: tuple[tuple[str, int, bool], ...]) -> str:
    if not asking:
        return f"no container requests {SHARE_RESOURCE}, so none can receive the share"
    for name, amount, stays in asking:
        if not stays:
            return (
                f"init container '{name}' requests {SHARE_RESOURCE}, but only a regular container can receive a share"
            )
        if amount != 1:
            return f"container '{name}' requests {amount} of {SHARE_RESOURCE}, but a container can have only one share"
    return ""


def _asking(spec: Mapping[str, Any]) -> Iterator[tuple[str, int, bool]]:
    """The containers that ask for the resource, the number they ask for, and whether they keep running."""
    for kind in ("initContainers", "containers"):
        for each in spec.get(kind) or ():
            resources = each.get("resources") or {}
            asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(SHARE_RESOURCE, "0")
            if amount := read_quantity(asked):
                yield str(each.get("name") or ""), amount, kind == "containers" or each.get("restartPolicy") == "Always"
