"""The acts of the steps that Tranche brings along: what the driver is told, one module for each kind of step."""

from __future__ import annotations

from typing import Final

from tranche.node.acts.create_instance import create_instance
from tranche.node.acts.destroy_instance import destroy_instance
from tranche.node.acts.reset_gpu import reset_gpu
from tranche.node.acts.set_mig_mode import set_mig_mode
from tranche.node.acts.set_timeslice import set_timeslice
from tranche.node.acts.start_mps import start_mps
from tranche.node.acts.stop_mps import stop_mps
from tranche.node.repertoire import NOTHING, Repertoire
from tranche.planning.steps import (
    BuiltInStep,
    CreateInstance,
    DestroyInstance,
    ResetGpu,
    SetMigMode,
    SetTimeslice,
    StartMps,
    StopMps,
)

_acts = (
    NOTHING.knowing(SetMigMode, set_mig_mode)
    .knowing(ResetGpu, reset_gpu)
    .knowing(DestroyInstance, destroy_instance)
    .knowing(CreateInstance, create_instance)
    .knowing(StartMps, start_mps)
    .knowing(StopMps, stop_mps)
    .knowing(SetTimeslice, set_timeslice)
)
# The type checker refuses this line when a kind of BuiltInStep has no act above.
BUILT_IN: Final[Repertoire[BuiltInStep]] = _acts
