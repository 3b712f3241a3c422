"""The kinds of step that Tranche brings along: one module each, and what tells them apart from anything else."""

from __future__ import annotations

from tranche.planning.steps.create_instance import CreateInstance
from tranche.planning.steps.destroy_instance import DestroyInstance
from tranche.planning.steps.kinds import KINDS, step_from_dict
from tranche.planning.steps.reset_gpu import ResetGpu
from tranche.planning.steps.set_mig_mode import SetMigMode
from tranche.planning.steps.set_timeslice import SetTimeslice
from tranche.planning.steps.start_mps import StartMps
from tranche.planning.steps.step import PriorSlotState, PriorState, Step, StepSummary, before_from_dict, before_to_dict
from tranche.planning.steps.stop_mps import StopMps
from tranche.planning.steps.taking import TakesGpu, TakesInstance, TakesRoom, TakesSharing, Taking

__all__ = [
    "KINDS",
    "CreateInstance",
    "DestroyInstance",
    "PriorSlotState",
    "PriorState",
    "ResetGpu",
    "SetMigMode",
    "SetTimeslice",
    "StartMps",
    "Step",
    "StepSummary",
    "StopMps",
    "TakesGpu",
    "TakesInstance",
    "TakesRoom",
    "TakesSharing",
    "Taking",
    "before_from_dict",
    "before_to_dict",
    "step_from_dict",
]
