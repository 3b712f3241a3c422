"""How a device comes to be shared by MPS."""

from __future__ import annotations

from tranche.core.errors import VerificationFailed
from tranche.core.state import GpuState
from tranche.node.execution.act_tools import StepContext
from tranche.planning.steps import StartMps


def start_mps(step: StartMps, gpu: GpuState, tools: StepContext) -> None:
    """Start the daemon, or raise the limit of the one that serves, and read the limit back."""
    device = step.device_uuid(gpu)
    if not device:
        raise VerificationFailed(f"{gpu.label}: {step.place} is not there, so it cannot be shared")
    tools.daemons.start(gpu, step.slot, device, step.limit, tools.driver, tools.sleep)
