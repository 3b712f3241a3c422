"""A Plan: an ordered list of small idempotent steps, computed by a pure function from an observed state.

Plans are data. `--dry-run` prints one, the executor carries it out and journals each step, and a saved one is refused when a
GPU that it touches no longer has the fingerprint it was computed from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tranche.core.errors import PlanInvalid, TrancheError
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName, parse_profile

FORMAT_VERSION = "tranche.dev/v1"


@dataclass(frozen=True, slots=True)
class SetMigMode:
    """Ask the driver for a MIG mode. On Ampere it stays pending until a reset."""

    gpu_uuid: str
    enabled: bool

    def __str__(self) -> str:
        return f"{'enable' if self.enabled else 'disable'} MIG mode"


@dataclass(frozen=True, slots=True)
class ResetGpu:
    """Reset one GPU, so that its pending MIG mode becomes effective."""

    gpu_uuid: str

    def __str__(self) -> str:
        return "reset the GPU"


@dataclass(frozen=True, slots=True)
class DestroyInstance:
    """Destroy the GPU instance of that profile and placement, its compute instances first."""

    gpu_uuid: str
    profile: ProfileName
    placement: Placement

    def __str__(self) -> str:
        return f"destroy {self.profile} at {self.placement}"


@dataclass(frozen=True, slots=True)
class CreateInstance:
    """Create a GPU instance of that profile at that placement, cut inside into `slices` (names of compute instances)."""

    gpu_uuid: str
    profile: ProfileName
    placement: Placement
    slices: tuple[ProfileName, ...]

    def __str__(self) -> str:
        inside = (
            "" if self.slices == (self.profile,) else " with " + (", ".join(map(str, self.slices)) or "nothing inside")
        )
        return f"create {self.profile} at {self.placement}{inside}"


Step = SetMigMode | ResetGpu | DestroyInstance | CreateInstance


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

    def steps_on(self, gpu_uuid: str) -> tuple[Step, ...]:
        """The steps of one GPU, in order."""
        return tuple(step for step in self.steps if step.gpu_uuid == gpu_uuid)


def step_to_dict(step: Step) -> dict[str, Any]:
    """The step as JSON data."""
    data: dict[str, Any] = {"action": type(step).__name__, "gpu": step.gpu_uuid}
    if isinstance(step, SetMigMode):
        data["enabled"] = step.enabled
    if isinstance(step, DestroyInstance | CreateInstance):
        data |= {"profile": str(step.profile), "start": step.placement.start, "size": step.placement.size}
    if isinstance(step, CreateInstance):
        data["slices"] = [str(name) for name in step.slices]
    return data


def step_from_dict(data: Mapping[str, Any]) -> Step:
    """The step that step_to_dict wrote; PlanInvalid when it is not one."""
    try:
        gpu, action = str(data["gpu"]), data["action"]
        if action == "SetMigMode":
            return SetMigMode(gpu, bool(data["enabled"]))
        if action == "ResetGpu":
            return ResetGpu(gpu)
        profile = parse_profile(data["profile"])
        placement = Placement(int(data["start"]), int(data["size"]))
        if action == "DestroyInstance":
            return DestroyInstance(gpu, profile, placement)
        if action == "CreateInstance":
            return CreateInstance(gpu, profile, placement, tuple(parse_profile(name) for name in data["slices"]))
    except (KeyError, TypeError, ValueError, TrancheError) as error:
        raise PlanInvalid(f"a step of the plan cannot be read: {dict(data)!r}") from error
    raise PlanInvalid(f"the plan has a step of unknown action {action!r}")


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data, as `-o json` prints it and `apply --plan` reads it."""
    return {
        "apiVersion": FORMAT_VERSION,
        "kind": "Plan",
        "purpose": plan.purpose,
        "fingerprints": dict(plan.fingerprints),
        "steps": [step_to_dict(step) for step in plan.steps],
    }


def plan_from_dict(data: object) -> Plan:
    """The plan that plan_to_dict wrote; PlanInvalid when it is not one."""
    if not isinstance(data, dict) or data.get("kind") != "Plan" or data.get("apiVersion") != FORMAT_VERSION:
        raise PlanInvalid(f"this is not a {FORMAT_VERSION} Plan", hint="write one with: tranche layout plan -o json")
    try:
        fingerprints = {str(gpu): str(mark) for gpu, mark in data["fingerprints"].items()}
        steps = tuple(step_from_dict(step) for step in data["steps"])
        return Plan(str(data["purpose"]), steps, fingerprints)
    except (KeyError, TypeError, AttributeError) as error:
        raise PlanInvalid("the plan lacks its purpose, fingerprints or steps") from error
