"""How a GPU instance is destroyed."""

from __future__ import annotations

from tranche.core.errors import GpuBusy
from tranche.core.state import GpuState
from tranche.node.execution.act_tools import StepContext
from tranche.planning.steps import DestroyInstance

# A GPU instance can stay in use for a moment after its last compute instance is gone (seen on A100 and H100).
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.1


def destroy_instance(step: DestroyInstance, gpu: GpuState, tools: StepContext) -> None:
    """Destroy the compute instances, then the GPU instance, which is tried again for two seconds while it stays in use."""
    instance = step.instance(gpu)
    assert instance is not None, "a step in effect is not carried out"
    for compute in instance.compute_instances:
        tools.driver.destroy_compute_instance(gpu.uuid, instance.id, compute.id)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            tools.driver.destroy_gpu_instance(gpu.uuid, instance.id)
            return
        except GpuBusy:
            if attempt == _ATTEMPTS:
                raise
            tools.sleep(_PAUSE_SECONDS)
