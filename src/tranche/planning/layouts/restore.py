"""From a node and a checkpoint to the Plan that restores its instances, keeping those already there.

And whether a saved plan may still run, and which users it would hit.
"""

from __future__ import annotations

from collections import Counter

from tranche.core.allocation import NodeView
from tranche.core.checkpoint import Checkpoint, RecordedGpu, compute_instance_name, gpu_instance_profile
from tranche.core.errors import CheckpointInvalid, StateMoved
from tranche.core.grid import PlacedInstance, fits
from tranche.core.state import GpuInstance, GpuState
from tranche.planning.layouts.reconfigure import GpuChange, LayoutDecision, change_mode
from tranche.planning.layouts.recut import Contents, Cut
from tranche.planning.occupancy.layout_occupancy import LayoutOccupancy, User, gpu_users
from tranche.planning.steps import Step, TakesGpu, TakesSharing
from tranche.planning.steps.plan import Plan

_PURPOSE = "restore"


def plan_restore(
    view: NodeView, checkpoint: Checkpoint, *, mode_only: bool = False, skip_reset: bool = False
) -> LayoutDecision:
    """What the checkpoint requires: its modes and instances, each at its recorded placement.

    Raises CheckpointInvalid when it names a GPU that is not here, a profile that the GPU lacks, or instances that cannot be
    together; HardwareError when every GPU that it names is lost. GPUs that it does not name stay as they are.
    """
    present = {gpu.uuid: gpu for gpu in view.node}
    nameless = [gpu for gpu in view.node if gpu.nameless]
    changes = []
    lost = []
    for recorded in checkpoint:
        gpu = present.get(recorded.uuid)
        if gpu is None and nameless:
            gpu = nameless.pop(0)
        if gpu is None:
            raise CheckpointInvalid(f"the checkpoint names {recorded.uuid}, which is not on this machine")
        if gpu.lost:
            lost.append(gpu.full_name)
            continue
        if not gpu.mig_capable:
            raise CheckpointInvalid(
                f"the checkpoint has MIG instances for {gpu.label} ({gpu.name}), which does not support MIG"
            )
        wanted = recorded_instances(gpu, recorded)
        users = gpu_users(view, gpu)
        change = change_mode(users, recorded.mig_enabled, skip_reset=skip_reset)
        if recorded.mig_enabled and not (mode_only or change.blockers or change.waits_for_reset):
            cut, blockers = _put_back(users.emptied if change.mode_steps else users, wanted)
            change = GpuChange(gpu, change.mode_steps, cut, blockers)
        changes.append(change)
    decision = LayoutDecision(_PURPOSE, tuple(changes), lost=tuple(lost))
    if not changes:
        decision.refuse_if_lost()
    return decision


def recorded_instances(gpu: GpuState, recorded: RecordedGpu) -> dict[PlacedInstance, Contents]:
    """The contents of each recorded placement, with this GPU's profile names, largest slice first."""
    instances: dict[PlacedInstance, Contents] = {}
    for record in recorded.instances:
        profile = gpu_instance_profile(gpu, record.profile_enum)
        occupant = PlacedInstance(profile.name, record.placement)
        inside = [compute_instance_name(profile, enum) for enum in record.compute_enums]
        if (
            record.placement.size != profile.size
            or record.placement.start not in profile.starts
            or not fits(profile, record.placement, list(instances))
            or sum(name.compute for name in inside) > profile.slices
        ):
            raise CheckpointInvalid(
                f"the checkpoint has {profile.name} at {record.placement} on {gpu.label} ({gpu.name}), which is not possible"
            )
        instances[occupant] = tuple(sorted(inside, key=lambda name: -name.compute))
    return instances


def _put_back(users: LayoutOccupancy, wanted: dict[PlacedInstance, Contents]) -> tuple[Cut, tuple[User, ...]]:
    kept: list[GpuInstance] = []
    blockers: list[User] = []
    missing = dict(wanted)
    for user in users.slice_users:
        assert user.occupant is not None
        if user.occupant in wanted and Counter(wanted[user.occupant]) == Counter(user.slices):
            missing.pop(user.occupant, None)
            kept += [user.instance] if user.instance is not None else []
        else:
            blockers.append(user)
    destroyed: list[GpuInstance] = []
    for instance in users.idle:
        occupant = instance.place
        if occupant in missing and Counter(missing[occupant]) == Counter(instance.slices):
            kept.append(instance)
            del missing[occupant]
        else:
            destroyed.append(instance)
    created = tuple(sorted(missing.items(), key=lambda pair: pair[0].placement))
    cut = Cut(tuple(kept), (), tuple(destroyed), created)
    if not cut.unchanged:
        blockers += users.holders_of_all
    return cut, tuple(blockers)


def as_saved(plan: Plan, view: NodeView) -> Plan:
    """The plan itself; raises StateMoved if a GPU that it touches has changed since."""
    for gpu_uuid, fingerprint in plan.fingerprints.items():
        gpu = view.node.gpu(gpu_uuid)
        if gpu.fingerprint != fingerprint:
            raise StateMoved(
                f"{gpu.label} no longer has the slices that it had when the plan was made",
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
    if user.occupant is not None:
        return step.meets(user.occupant.placement)
    return any(taking in (TakesGpu(), TakesSharing(None)) for taking in step.takes)
