"""How layout commands show a decision and the progress of a change."""

from __future__ import annotations

import threading
import time

from tranche.cli.output import print_table, say
from tranche.core.errors import GpuBusy
from tranche.core.state import GpuState, NodeState
from tranche.documents.layout_change import counted
from tranche.planning.steps import Step
from tranche.planning.steps.plan import Plan

_QUIET_SECONDS = 1.0


def print_plan(plan: Plan, node: NodeState) -> None:
    """The steps as a table on stdout, and their sum on stderr."""
    labels = {gpu.uuid: gpu.index for gpu in node}
    if plan.empty:
        say("nothing to do: the GPUs are as declared")
        return
    print_table(("GPU", "STEP"), [(labels.get(step.gpu_uuid, step.gpu_uuid), step) for step in plan.steps])
    say(f"{counted(len(plan.steps), 'step')} on {counted(len(plan.gpu_uuids), 'GPU')}")


class ProgressReporter:
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
