"""How layout commands show a decision and the progress of a change."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tranche.cli.output import print_table, say
from tranche.core.errors import GpuBusy
from tranche.core.state import GpuState, NodeState
from tranche.planning.plan import Plan
from tranche.planning.reconfigure import LayoutDecision
from tranche.planning.steps import KINDS, Step

_QUIET_SECONDS = 1.0


def print_plan(plan: Plan, node: NodeState) -> None:
    """The steps as a table on stdout, and their sum on stderr."""
    labels = {gpu.uuid: gpu.index for gpu in node}
    if plan.empty:
        say("nothing to do: the GPUs are as declared")
        return
    print_table(("GPU", "STEP"), [(labels.get(step.gpu_uuid, step.gpu_uuid), step) for step in plan.steps])
    say(f"{_count(len(plan.steps), 'step')} on {_count(len(plan.gpu_uuids), 'GPU')}")


def decision_data(decision: LayoutDecision) -> dict[str, Any]:
    """What a change did, as JSON data: per GPU the steps and the instances that stayed."""
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
    """One line on what a change did: `destroyed 1 instance, created 2 instances, kept 3 instances`."""
    words = _step_counts(decision.plan.steps)
    kept = sum(len(change.cut.kept) for change in decision.changes)
    if not words and decision.lost:
        return "nothing to do: the GPUs that can be reached are as declared"
    if not words:
        return "nothing to do: the GPUs are as declared"
    return ", ".join([*words, *([f"kept {_count(kept, 'instance')}"] if kept else [])])


class Narrator:
    """Says on stderr what is going on, once it takes longer than a second."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._steps = 0
        self._waiting_for = ""
        self._lock = threading.Lock()

    def step(self, gpu: GpuState, step: Step) -> None:
        """A step begins; called from several threads."""
        with self._lock:
            self._steps += 1
            if time.monotonic() - self._begun > _QUIET_SECONDS:
                say(f"step {self._steps}: {gpu.label}: {step}")

    def waiting(self, reason: GpuBusy) -> None:
        """The change waits; said again only when the reason changes."""
        if reason.message != self._waiting_for:
            say(f"waiting: {reason.message}")
        self._waiting_for = reason.message


def _step_counts(steps: Sequence[Step]) -> list[str]:
    ranks = {name: rank for rank, name in enumerate(KINDS.names)}
    deeds = Counter(step.deed for step in sorted(steps, key=lambda step: ranks.get(step.action, len(ranks))))
    return [f"{deed.verb} {_count(number, deed.noun)}" for deed, number in deeds.items()]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
