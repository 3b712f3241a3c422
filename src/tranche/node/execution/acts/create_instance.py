"""How a GPU instance is created, or cut inside."""

from __future__ import annotations

from tranche.core.state import GpuState
from tranche.node.execution.act_tools import StepContext
from tranche.planning.steps import CreateInstance


def create_instance(step: CreateInstance, gpu: GpuState, tools: StepContext) -> None:
    """Create the instance where it is not there yet, then the compute instances that it lacks."""
    instance = step.instance(gpu)
    instance_id = (
        instance.id
        if instance is not None
        else tools.driver.create_gpu_instance(gpu.uuid, step.profile, step.placement)
    )
    for name in step.missing(instance):
        tools.driver.create_compute_instance(gpu.uuid, instance_id, name)
