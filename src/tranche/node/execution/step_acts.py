"""The act of each kind of step, and the look afterwards whether the GPU shows its effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tranche.core.state import GpuState
from tranche.node.execution.act_tools import StepContext
from tranche.node.execution.acts.create_instance import create_instance
from tranche.node.execution.acts.destroy_instance import destroy_instance
from tranche.node.execution.acts.reset_gpu import reset_gpu
from tranche.node.execution.acts.set_mig_mode import set_mig_mode
from tranche.node.execution.acts.set_timeslice import set_timeslice
from tranche.node.execution.acts.start_mps import start_mps
from tranche.node.execution.acts.stop_mps import stop_mps
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

# Told a step for a GPU as it was last seen; called only while the step is not in effect.
Act = Callable[[Any, GpuState, StepContext], None]

ACTS: Final[Mapping[type[Step], Act]] = {
    SetMigMode: set_mig_mode,
    ResetGpu: reset_gpu,
    DestroyInstance: destroy_instance,
    CreateInstance: create_instance,
    StartMps: start_mps,
    StopMps: stop_mps,
    SetTimeslice: set_timeslice,
}


def carry_out(step: Step, gpu: GpuState, tools: StepContext) -> GpuState:
    """Do the step on the GPU, last seen as given; the GPU as it is afterwards. The step's own error when nothing shows."""
    ACTS[type(step)](step, gpu, tools)
    after = tools.observe_gpu(gpu.uuid)
    if not step.in_effect(after):
        raise step.not_shown(after)
    return after
