"""A machine at one moment: its GPUs with their gauges, the shares, the waiters with what they wait for, and the running plans."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tranche.core.allocation import Allocation, NodeView, missing_instances
from tranche.core.errors import TrancheError
from tranche.core.keeper import owner_to_dict
from tranche.core.readings import GpuReading
from tranche.core.wire import grant_to_dict, keeper_to_dict, request_to_dict
from tranche.documents import describe
from tranche.documents.holder_names import NO_OWNERS, NameTable, Owners, names_of, owner_now
from tranche.documents.machine import gpu_document, key_document, process_documents
from tranche.documents.reasons import summed_up
from tranche.documents.slices import why_unavailable
from tranche.node.store.journal import PlanRecord
from tranche.node.store.records import Waiter
from tranche.planning.decide.allocate import Decision, Granted
from tranche.planning.decide.obstacle import Obstacle
from tranche.planning.decide.queue import WaitingRequest, outlooks


def overview_data(
    view: NodeView, queue: Sequence[Waiter], away: Collection[str], owners: Owners = NO_OWNERS
) -> dict[str, Any]:
    """The fields of an Overview; `away` are the waiters that do not answer."""
    return {
        "gpus": [gpu_document(view, gpu) for gpu in view.node],
        "allocations": [allocation_document(each, view, owners) for each in view.allocations],
        "waiters": waiter_documents(view, queue, away, owners),
    }


def reading_document(reading: GpuReading) -> dict[str, Any]:
    """One GPU with its slices: bytes, watts, degrees Celsius, and shares of time from 0 to 1."""
    return {
        "gpuUUID": reading.gpu_uuid,
        "memoryUsedBytes": reading.memory_used,
        "busy": reading.utilization if reading.utilization is not None else reading.activity.graphics,
        "powerWatts": reading.power,
        "temperatureCelsius": reading.temperature,
        "slices": [
            {"gpuInstanceId": id, "memoryUsedBytes": each.memory_used, "busy": each.activity.graphics}
            for id, each in reading.slices.items()
        ],
    }


def plan_document(plan: PlanRecord) -> dict[str, Any]:
    """An unfinished plan: `status` is `running` or `undoing`; each step has its text and its status in the journal."""
    return {
        "planId": plan.id,
        "status": str(plan.status),
        "purpose": plan.purpose,
        "allocationId": plan.allocation_id or None,
        "steps": [
            {"gpuUUID": each.step.gpu_uuid, "step": str(each.step), "status": str(each.status)} for each in plan.steps
        ],
    }


def waiter_documents(
    view: NodeView, queue: Sequence[Waiter], away: Collection[str], owners: Owners = NO_OWNERS
) -> list[dict[str, object]]:
    """The waiters in order, each with its place in the queue, from 1, and what it waits for."""
    reasons = why_they_wait(view, queue, away, owners)
    return [
        {
            "position": position,
            "id": waiter.id,
            "request": request_to_dict(waiter.request),
            "created": describe.timestamp(waiter.created),
            "pid": waiter.pid,
            "owner": owner_to_dict(owners.get(waiter.id)),
            "command": waiter.command,
            "why": why,
            "obstacles": [obstacle_document(each) for each in obstacles],
        }
        for position, (waiter, (why, obstacles)) in enumerate(zip(queue, reasons, strict=True), start=1)
    ]


def why_they_wait(
    view: NodeView, queue: Sequence[Waiter], away: Collection[str], owners: Owners = NO_OWNERS
) -> list[tuple[str, tuple[Obstacle, ...]]]:
    """What each waiter waits for, as a sentence and as obstacles; a waiter may be about to start.

    `away` are the waiters that do not answer; others do not wait for them.
    """
    answers = outlooks(view, [WaitingRequest(each.id, each.request, each.uid) for each in queue if each.id not in away])
    names = names_of(view.allocations, queue, owners)
    return [_AWAY if each.id in away else _why(next(answers), names) for each in queue]


_AWAY: tuple[str, tuple[Obstacle, ...]] = (
    "its process is stopped or does not answer; meanwhile, Tranche serves others",
    (),
)


def _why(outlook: Decision | TrancheError, names: NameTable) -> tuple[str, tuple[Obstacle, ...]]:
    if isinstance(outlook, TrancheError):
        return outlook.message, ()
    if isinstance(outlook, Granted):
        return "about to start", ()
    return summed_up(outlook, names), outlook.obstacles


def allocation_document(allocation: Allocation, view: NodeView, owners: Owners = NO_OWNERS) -> dict[str, Any]:
    """One allocation with its grants, and with those that are missing."""
    return {
        "id": allocation.id,
        "request": request_to_dict(allocation.request),
        "grants": [grant_to_dict(each) for each in allocation.grants],
        "phase": str(allocation.phase),
        "created": describe.timestamp(allocation.created),
        "keeper": keeper_to_dict(allocation.keeper),
        "pid": allocation.holder_pid or None,
        "owner": owner_to_dict(owner_now(allocation, owners)),
        "command": allocation.command,
        "unavailable": why_unavailable(allocation, view) or None,
        "idleSeconds": view.idle.get(allocation.id),
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
