"""How the length of time slices is set, and put back."""

from __future__ import annotations

from tranche.core.state import GpuState
from tranche.node.execution.act_tools import StepContext
from tranche.planning.steps import SetTimeslice


def set_timeslice(step: SetTimeslice, gpu: GpuState, tools: StepContext) -> None:
    """Set the length, or put back what was there, and read it back."""
    if step.length is None:
        tools.timeslices.put_back(gpu, tools.driver)
    else:
        tools.timeslices.set(gpu, step.length, tools.driver)
