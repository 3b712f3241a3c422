"""How a GPU is reset."""

from __future__ import annotations

from tranche.core.state import GpuState
from tranche.node.execution.act_tools import StepContext
from tranche.planning.steps import ResetGpu


def reset_gpu(step: ResetGpu, gpu: GpuState, tools: StepContext) -> None:
    """Have the driver reset the GPU."""
    tools.driver.reset_gpu(gpu.uuid)
