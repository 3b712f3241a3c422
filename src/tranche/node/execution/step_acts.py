"""Carries out each kind of step by the driver, then checks that the GPU shows its effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tranche.core.errors import GpuBusy, VerificationFailed
from tranche.core.state import GpuState
from tranche.node.execution.host_context import HostContext
from tranche.planning.steps import (
    CreateInstance,
    DestroyInstance,
    ResetGpu,
    SetMigMode,
    SetTimeslice,
    StartMps,
    Step,
    StopMps,
)


def create_instance(step: CreateInstance, gpu: GpuState, machine: HostContext) -> None:
    """Create the instance if it is missing, then its missing compute instances."""
    instance = step.instance(gpu)
    instance_id = (
        instance.id
        if instance is not None
        else machine.driver.create_gpu_instance(gpu.uuid, step.profile, step.placement)
    )
    for name in step.missing(instance):
        machine.driver.create_compute_instance(gpu.uuid, instance_id, name)


# A GPU instance can stay in use for a moment after its last compute instance is gone (seen on A100 and H100).
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.1


def destroy_instance(step: DestroyInstance, gpu: GpuState, machine: HostContext) -> None:
    """Destroy the compute instances, then the GPU instance; retries for two seconds while it stays in use."""
    instance = step.instance(gpu)
    assert instance is not None, "a step in effect is not carried out"
    for compute in instance.compute_instances:
        machine.driver.destroy_compute_instance(gpu.uuid, instance.id, compute.id)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            machine.driver.destroy_gpu_instance(gpu.uuid, instance.id)
            return
        except GpuBusy:
            if attempt == _ATTEMPTS:
                raise
            machine.sleep(_PAUSE_SECONDS)


def reset_gpu(step: ResetGpu, gpu: GpuState, machine: HostContext) -> None:
    """Let the driver reset the GPU."""
    machine.driver.reset_gpu(gpu.uuid)


def set_mig_mode(step: SetMigMode, gpu: GpuState, machine: HostContext) -> None:
    """Ask the driver for the mode."""
    machine.driver.set_mig_mode(gpu.uuid, step.enabled)


def set_timeslice(step: SetTimeslice, gpu: GpuState, machine: HostContext) -> None:
    """Set the length, or restore the previous one, and verify it."""
    if step.length is None:
        machine.timeslices.put_back(gpu, machine.driver)
    else:
        machine.timeslices.set(gpu, step.length, machine.driver)


def start_mps(step: StartMps, gpu: GpuState, machine: HostContext) -> None:
    """Start the daemon, or raise the serving daemon's limit, and verify the limit."""
    device = step.device_uuid(gpu)
    if not device:
        raise VerificationFailed(f"{gpu.label}: {step.place} does not exist, so it cannot be shared")
    machine.daemons.start(gpu, step.slot, device, step.limit, machine.driver, machine.sleep)


def stop_mps(step: StopMps, gpu: GpuState, machine: HostContext) -> None:
    """End the daemon and restore the compute mode."""
    machine.daemons.stop(gpu, step.slot, machine.driver, machine.sleep)


# Receives a step and its GPU as last seen; called only while the step is not in effect.
Act = Callable[[Any, GpuState, HostContext], None]

ACTS: Final[Mapping[type[Step], Act]] = {
    SetMigMode: set_mig_mode,
    ResetGpu: reset_gpu,
    DestroyInstance: destroy_instance,
    CreateInstance: create_instance,
    StartMps: start_mps,
    StopMps: stop_mps,
    SetTimeslice: set_timeslice,
}


def carry_out(step: Step, gpu: GpuState, machine: HostContext) -> GpuState:
    """Do the step on the GPU, last seen as `gpu`; returns the GPU afterwards. Raises the step's own error without an effect."""
    ACTS[type(step)](step, gpu, machine)
    after = machine.observe_gpu(gpu.uuid)
    if not step.in_effect(after):
        raise step.not_shown(after)
    return after
