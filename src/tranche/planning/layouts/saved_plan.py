"""Whether a saved plan may still run, and which users it would hit."""

from __future__ import annotations

from typing import assert_never

from tranche.core.allocation import NodeView
from tranche.core.errors import StateMoved
from tranche.planning.occupancy.layout_occupancy import User, gpu_users
from tranche.planning.steps import Step, TakesGpu, TakesInstance, TakesRoom, TakesSharing
from tranche.planning.steps.plan import Plan


def as_saved(plan: Plan, view: NodeView) -> Plan:
    """The plan itself; raises StateMoved if a GPU that it touches has changed since."""
    for gpu_uuid, fingerprint in plan.fingerprints.items():
        gpu = view.node.gpu(gpu_uuid)
        if gpu.fingerprint != fingerprint:
            raise StateMoved(
                f"{gpu.label} is no longer cut as it was when the plan was made",
                hint="make a new plan with: tranche layout plan",
            )
    missing = set(plan.gpu_uuids) - set(plan.fingerprints)
    if missing:
        raise StateMoved(f"the plan has no expected state for GPU {min(missing)}")
    return plan


def users_hit_by(view: NodeView, plan: Plan) -> tuple[User, ...]:
    """Every user of something that a step of the plan would take; raises GpuNotFound if the plan names an absent GPU.

    Skips GPUs that differ from the plan's expectation: the plan is refused because of them.
    """
    hit: dict[int, User] = {}
    for gpu_uuid in plan.gpu_uuids:
        gpu = view.node.gpu(gpu_uuid)
        if gpu.fingerprint != plan.fingerprints.get(gpu_uuid):
            continue
        users = gpu_users(view, gpu).users
        for step in plan.steps_on(gpu_uuid):
            hit.update({id(user): user for user in users if _takes(step, user)})
    return tuple(hit.values())


def _takes(step: Step, user: User) -> bool:
    if user.changing or (user.occupant is None and user.allocations):
        return True
    for taking in step.takes:
        match taking:
            case TakesInstance(slot) | TakesRoom(slot):
                if user.occupant is not None and user.occupant.placement.overlaps(slot.placement):
                    return True
            case TakesSharing(of):
                if of is None or (user.occupant is not None and user.occupant.placement.overlaps(of.placement)):
                    return True
            case TakesGpu():
                return True
            case _:
                assert_never(taking)
    return False
