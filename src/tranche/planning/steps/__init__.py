"""Every kind of step, by its name in plans and journals. Unknown kinds are refused, never skipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tranche.core.errors import PlanInvalid, TrancheError
from tranche.planning.steps.mig import CreateInstance, DestroyInstance, ResetGpu, SetMigMode
from tranche.planning.steps.shared_device import SetTimeslice, StartMps, StopMps
from tranche.planning.steps.step import (
    PriorSlotState,
    PriorState,
    Step,
    TakesGpu,
    TakesInstance,
    TakesRoom,
    TakesSharing,
    Taking,
    before_from_dict,
    before_to_dict,
)

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

# In a summary's order.
KINDS: Final[Mapping[str, type[Step]]] = {
    kind.__name__: kind
    for kind in (SetMigMode, ResetGpu, DestroyInstance, CreateInstance, StartMps, StopMps, SetTimeslice)
}


def step_from_dict(data: Mapping[str, Any]) -> Step:
    """The step that Step.to_dict wrote; raises PlanInvalid for other data or an unknown kind."""
    try:
        kind = KINDS.get(data["action"])
        step = None if kind is None else kind.from_fields(str(data["gpu"]), data)
    except (KeyError, TypeError, ValueError, OverflowError, TrancheError) as error:
        raise PlanInvalid(f"a step of the plan cannot be read: {data!s:.200}") from error
    if step is None:
        raise PlanInvalid(
            f"the plan has a step with the unknown action {data['action']!r}",
            hint="this version of Tranche cannot carry it out; use the version that made the plan",
        )
    return step
