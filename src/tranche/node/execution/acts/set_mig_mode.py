"""How a MIG mode is asked for."""

from __future__ import annotations

from tranche.core.state import GpuState
from tranche.node.execution.act_tools import StepContext
from tranche.planning.steps import SetMigMode


def set_mig_mode(step: SetMigMode, gpu: GpuState, tools: StepContext) -> None:
    """Ask the driver for the mode."""
    tools.driver.set_mig_mode(gpu.uuid, step.enabled)
