"""What a layout change removes and keeps: as JSON data, in one line, and as a preview."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tranche.core.allocation import NodeView
from tranche.documents.machine import gpu_document
from tranche.planning.layouts.reconfigure import LayoutDecision
from tranche.planning.steps import KINDS, Step
from tranche.planning.steps.plan import apply


def decision_data(decision: LayoutDecision) -> dict[str, Any]:
    """What a change did, as JSON data: for each GPU the steps and the instances that stayed."""
    return {
        "purpose": decision.purpose,
        "gpus": [
            {
                "index": change.gpu.index,
                "uuid": change.gpu.uuid,
                "steps": [str(step) for step in change.steps],
                "kept": [
                    {
                        "profile": str(instance.profile),
                        "start": instance.placement.start,
                        "size": instance.placement.size,
                        "migDevices": [ci.uuid for ci in instance.compute_instances],
                    }
                    for instance in change.cut.kept
                ],
            }
            for change in decision.changes
        ],
        "warnings": list(decision.warnings),
        **({"lost": list(decision.lost)} if decision.lost else {}),
    }


def sum_up(decision: LayoutDecision) -> str:
    """A change in one line: `destroyed 1 instance, created 2 instances, kept 3 instances`."""
    words = _step_counts(decision.plan.steps)
    kept = sum(len(change.cut.kept) for change in decision.changes)
    if not words and any(change.blockers for change in decision.changes):
        return "nothing can be changed while something is in the way"
    if not words and decision.lost:
        return "nothing to do: the reachable GPUs already match the layout"
    if not words:
        return "nothing to do: the GPUs already match the layout"
    return ", ".join([*words, *([f"kept {counted(kept, 'instance')}"] if kept else [])])


def preview_data(decision: LayoutDecision, view: NodeView) -> dict[str, Any]:
    """What the change would do now: its data, its blockers, and its GPUs afterwards.

    A change that is blocked anywhere is not made at all; `after` then shows the GPUs that are free to change.
    """
    blocked = {change.gpu.uuid: [str(each) for each in change.blockers] for change in decision.changes}
    expected = apply(decision.plan, view)
    data = decision_data(decision)
    return {
        **data,
        "gpus": [{**each, "blockers": blocked[each["uuid"]]} for each in data["gpus"]],
        "summary": sum_up(decision),
        "after": [gpu_document(expected, expected.node.gpu(change.gpu.uuid)) for change in decision.changes],
    }


def _step_counts(steps: Sequence[Step]) -> list[str]:
    ranks = {name: rank for rank, name in enumerate(KINDS)}
    deeds = Counter(step.summary_words for step in sorted(steps, key=lambda step: ranks.get(step.action, len(ranks))))
    return [f"{verb} {counted(number, noun)}" for (verb, noun), number in deeds.items()]


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 step`, `3 steps`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
