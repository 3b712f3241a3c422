"""A node by the rules of the grid alone: carries out a Plan and refuses what a driver would refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import assert_never

from tests.strategies import FAMILY_BOARDS, gpu_on, holders_of
from tranche.core.allocation import NodeView
from tranche.core.board import GpuInstanceProfile
from tranche.core.grid import PlacedInstance, Placement, fits, placements
from tranche.core.profile import ProfileName
from tranche.core.state import GpuInstance, GpuState, InstanceKey
from tranche.planning.steps import CreateInstance, Step, TakesGpu, TakesInstance, TakesRoom, TakesSharing
from tranche.planning.steps.plan import Plan


def free_placements(profile: GpuInstanceProfile, occupants: Sequence[PlacedInstance]) -> tuple[Placement, ...]:
    """The placements where an instance of the profile could be created beside the occupants."""
    return tuple(spot for spot in placements(profile) if fits(profile, spot, occupants))


def filled_instance(profile: GpuInstanceProfile, placement: Placement, slices: Sequence[ProfileName]) -> GpuInstance:
    """An instance there that holds those compute slices."""
    bare = replace(gpu_on(FAMILY_BOARDS[0]), profiles=(profile,))
    step = CreateInstance(bare.uuid, profile.name, placement, tuple(slices))
    (made,) = _named_as_by_a_driver(step.apply(bare)).instances
    assert sum(ci.slices for ci in made.compute_instances) <= profile.slices
    return made


def carry_out(view: NodeView, plan: Plan) -> NodeView:
    """The view after the plan; AssertionError when a step breaks a rule of the hardware or touches something in use."""
    gpus = {gpu.uuid: gpu for gpu in view.node}
    assert set(plan.fingerprints) == set(plan.gpu_uuids)
    for uuid, fingerprint in plan.fingerprints.items():
        assert gpus[uuid].fingerprint == fingerprint
    for step in plan.steps:
        gpus[step.gpu_uuid] = _after(view, gpus[step.gpu_uuid], step)
    return replace(view, node=replace(view.node, gpus=tuple(gpus.values())))


def _after(view: NodeView, gpu: GpuState, step: Step) -> GpuState:
    assert not step.in_effect(gpu), "a step that changes nothing"
    if step.changes_mode:
        assert gpu.mig_capable
    for taking in step.takes:
        match taking:
            case TakesGpu():
                assert not gpu.all_processes
                assert not gpu.instances
                assert not view.grants_on(gpu.uuid)
                assert gpu.uuid not in view.changing
            case TakesInstance(slot):
                gone = gpu.instance_in(slot)
                assert gone is not None
                assert not gone.processes
                assert not holders_of(view, gpu.key(gone))
            case TakesSharing(occupant):
                slot_of = None if occupant is None else InstanceKey(gpu.uuid, occupant.profile, occupant.placement)
                assert not view.grants_on(gpu.uuid) if slot_of is None else not holders_of(view, slot_of)
            case TakesRoom(slot):
                _check_room(view, gpu, slot)
            case _:
                assert_never(taking)
    after = _named_as_by_a_driver(step.apply(gpu))
    for instance in after.instances:
        taken = [slice_ for ci in instance.compute_instances for slice_ in range(ci.start, ci.start + ci.slices)]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(range(instance.profile.slices))
    return after


def _check_room(view: NodeView, gpu: GpuState, slot: PlacedInstance) -> None:
    assert gpu.mig_enabled
    assert not gpu.mode_pending
    profile = gpu.profile(slot.profile)
    assert profile is not None
    existing = gpu.instance_at(slot.placement)
    if existing is not None:
        assert existing.profile == slot.profile
        assert not existing.processes
        return
    occupants = {*gpu.occupants, *view.promised_on(gpu.uuid)}
    assert fits(profile, slot.placement, list(occupants))


def _named_as_by_a_driver(gpu: GpuState) -> GpuState:
    """The GPU with ids and UUIDs where a step left them open; the same slot has the same UUID again."""
    return replace(gpu, instances=tuple(_named(gpu, each) for each in gpu.instances))


def _named(gpu: GpuState, instance: GpuInstance) -> GpuInstance:
    if instance.id >= 0 and all(ci.uuid for ci in instance.compute_instances):
        return instance
    profile = gpu.profile(instance.profile)
    assert profile is not None
    inside = []
    for number, ci in enumerate(instance.compute_instances):
        uuid = f"MIG-{gpu.index}-{profile.enum}-{instance.placement}-{ci.start}"
        inside.append(ci if ci.uuid else ci._replace(id=number, profile_id=ci.name.compute - 1, uuid=uuid))
    number = instance.placement.start + 1 if instance.id < 0 else instance.id
    return instance._replace(id=number, compute_instances=tuple(inside))


def arrangements(
    gpu: GpuState, wanted: Counter[ProfileName], taken: tuple[PlacedInstance, ...] = ()
) -> Iterator[frozenset[PlacedInstance]]:
    """Every way to place the wanted whole instances beside what is taken. Slow, and independent of the planner."""
    rest = +wanted
    if not rest:
        yield frozenset(taken)
        return
    name = min(rest)
    profile = gpu.profile(name)
    if profile is None:
        return
    last = max((spot.placement for spot in taken if spot.profile == name), default=Placement(-1, 0))
    for spot in placements(profile):
        if spot > last and fits(profile, spot, taken):
            yield from arrangements(gpu, rest - Counter([name]), (*taken, PlacedInstance(name, spot)))
