"""A Plan: an ordered list of small idempotent steps, computed by a pure function from an observed state.

Plans are data. `--dry-run` prints one, the executor carries it out and journals each step, and a saved one is refused when a
GPU that it touches no longer has the fingerprint it was computed from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tranche.core.errors import PlanInvalid
from tranche.planning.steps import Step, step_from_dict

FORMAT_VERSION = "tranche.dev/v1"


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in order; those of different GPUs are independent.

    `fingerprints` maps each touched GPU's UUID to the fingerprint of the state that the plan was computed from.
    """

    purpose: str
    steps: tuple[Step, ...] = ()
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.steps

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The GPUs that the plan touches, in order of first step."""
        return tuple(dict.fromkeys(step.gpu_uuid for step in self.steps))

    @property
    def apart(self) -> tuple[Plan, ...]:
        """A plan for each GPU, with the same purpose: steps of different GPUs are independent."""
        return tuple(
            Plan(
                self.purpose,
                self.steps_on(gpu_uuid),
                {uuid: mark for uuid, mark in self.fingerprints.items() if uuid == gpu_uuid},
            )
            for gpu_uuid in self.gpu_uuids
        )

    def steps_on(self, gpu_uuid: str) -> tuple[Step, ...]:
        """The steps of one GPU, in order."""
        return tuple(step for step in self.steps if step.gpu_uuid == gpu_uuid)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data, as `-o json` prints it and `apply --plan` reads it."""
    return {
        "apiVersion": FORMAT_VERSION,
        "kind": "Plan",
        "purpose": plan.purpose,
        "fingerprints": dict(plan.fingerprints),
        "steps": [step.to_dict() for step in plan.steps],
    }


def plan_from_dict(data: object) -> Plan:
    """The plan that plan_to_dict wrote; PlanInvalid when it is not one, or has a step of an unknown kind."""
    if not isinstance(data, dict) or data.get("kind") != "Plan" or data.get("apiVersion") != FORMAT_VERSION:
        raise PlanInvalid(f"this is not a {FORMAT_VERSION} Plan", hint="write one with: tranche layout plan -o json")
    try:
        fingerprints = {str(gpu): str(mark) for gpu, mark in data["fingerprints"].items()}
        steps = tuple(step_from_dict(step) for step in data["steps"])
        return Plan(str(data["purpose"]), steps, fingerprints)
    except (KeyError, TypeError, AttributeError) as error:
        raise PlanInvalid("the plan lacks its purpose, fingerprints or steps") from error
