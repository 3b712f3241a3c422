"""A machine at one moment: its GPUs with their gauges, the holders, the waiters, and the running plans."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tranche.core.allocation import NodeView
from tranche.core.readings import GpuReading
from tranche.documents.holder_names import NO_OWNERS, Owners
from tranche.documents.machine import gpu_document
from tranche.documents.queue import waiter_documents
from tranche.documents.shares import allocation_document
from tranche.node.store.journal import PlanRecord
from tranche.node.store.records import Waiter


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
