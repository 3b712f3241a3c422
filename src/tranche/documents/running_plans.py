"""Plans that run now, with how far they are."""

from __future__ import annotations

from typing import Any

from tranche.node.store.journal import PlanRecord


def plan_document(plan: PlanRecord) -> dict[str, Any]:
    """A plan without an end: `status` is `running` or `undoing`; each step in words with how far it is, by the journal's word."""
    return {
        "planId": plan.id,
        "status": str(plan.status),
        "purpose": plan.purpose,
        "allocationId": plan.allocation_id or None,
        "steps": [
            {"gpuUUID": each.step.gpu_uuid, "step": str(each.step), "status": str(each.status)} for each in plan.steps
        ],
    }
