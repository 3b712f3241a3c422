"""Shares, and the obstacles of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tranche.core.allocation import Allocation, NodeView
from tranche.core.keeper import owner_to_dict
from tranche.core.wire import grant_to_dict, keeper_to_dict, request_to_dict
from tranche.documents.describe import timestamp
from tranche.documents.holder_names import NO_OWNERS, Owners, owner_now
from tranche.documents.machine import key_document, process_documents
from tranche.documents.shared_devices import why_unavailable
from tranche.documents.slices import missing_instances

if TYPE_CHECKING:
    from tranche.planning.decide.obstacle import Obstacle


def allocation_document(allocation: Allocation, view: NodeView, owners: Owners = NO_OWNERS) -> dict[str, Any]:
    """One allocation with its grants, and with those that are missing."""
    return {
        "id": allocation.id,
        "request": request_to_dict(allocation.request),
        "grants": [grant_to_dict(each) for each in allocation.grants],
        "phase": str(allocation.phase),
        "created": timestamp(allocation.created),
        "keeper": keeper_to_dict(allocation.keeper),
        "pid": allocation.holder_pid or None,
        "owner": owner_to_dict(owner_now(allocation, owners)),
        "command": allocation.command,
        "fenced": why_unavailable(allocation, view) or None,
        "missingInstances": [key_document(key) for key in missing_instances(view, allocation)],
    }


def obstacle_document(found: Obstacle) -> dict[str, Any]:
    """An obstacle on one GPU; `reason` is a stable word."""
    document = {
        "gpuIndex": found.gpu_index,
        "gpuUUID": found.gpu_uuid,
        "reason": str(found.reason),
        "message": found.text,
        "missingSlices": found.missing_slices,
        "missingMemoryBytes": found.missing_memory,
        "allocationIds": list(found.allocation_ids),
        "processes": process_documents(found.processes),
        "instances": [key_document(key) for key in found.instances],
    }
    return document | ({"moreGpus": found.alike} if found.alike else {})
