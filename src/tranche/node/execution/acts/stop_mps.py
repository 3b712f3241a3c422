"""How a device ceases to be shared by MPS."""

from __future__ import annotations

from tranche.core.state import GpuState
from tranche.node.execution.act_tools import StepContext
from tranche.planning.steps import StopMps


def stop_mps(step: StopMps, gpu: GpuState, tools: StepContext) -> None:
    """End the daemon and put the compute mode back."""
    tools.daemons.stop(gpu, step.slot, tools.driver, tools.sleep)
