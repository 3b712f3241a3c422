"""A node by the rules of the grid alone: carries out a Plan and refuses what a driver would refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.strategies import instance_of
from tranche.core.allocation import NodeView
from tranche.core.board import GpuInstanceProfile
from tranche.core.grid import Occupant, Placement, fits, placements
from tranche.core.profile import ProfileName
from tranche.core.state import ComputeInstance, GpuInstance, GpuState, MigMode, NodeState
from tranche.planning.plan import CreateInstance, DestroyInstance, Plan, ResetGpu, SetMigMode, Step


def filled_instance(
    profile: GpuInstanceProfile,
    placement: Placement,
    slices: Sequence[ProfileName],
    template: GpuInstance | None = None,
) -> GpuInstance:
    """An instance there that holds those compute slices; compute instances of the template stay."""
    instance = template or replace(instance_of(profile, placement), compute_instances=())
    present = list(instance.compute_instances)
    for name in (Counter(slices) - Counter(instance.slices)).elements():
        start = sum(ci.slices for ci in present)
        uuid = f"MIG-{profile.enum}-{placement}-{start}"
        present.append(ComputeInstance(len(present), name, name.compute - 1, start, name.compute, uuid, None))
    assert sum(ci.slices for ci in present) <= profile.slices
    return replace(instance, compute_instances=tuple(present))


def carry_out(view: NodeView, plan: Plan) -> NodeView:
    """The view after the plan; AssertionError when a step breaks a rule of the hardware or touches something in use."""
    gpus = {gpu.uuid: gpu for gpu in view.node}
    assert set(plan.fingerprints) == set(plan.gpu_uuids)
    for uuid, fingerprint in plan.fingerprints.items():
        assert gpus[uuid].fingerprint == fingerprint
    for step in plan.steps:
        gpus[step.gpu_uuid] = _after(view, gpus[step.gpu_uuid], step)
    return replace(view, node=NodeState(tuple(gpus.values())))


def _after(view: NodeView, gpu: GpuState, step: Step) -> GpuState:
    match step:
        case SetMigMode(enabled=enabled):
            mode = MigMode.ENABLED if enabled else MigMode.DISABLED
            assert gpu.mig_capable
            assert not gpu.all_processes
            assert not gpu.instances
            assert not view.grants_on(gpu.uuid)
            assert gpu.uuid not in view.changing
            return replace(gpu, pending_mode=mode, mode=gpu.mode if gpu.mode_change_needs_reset else mode)
        case ResetGpu():
            assert gpu.mode_pending, "a reset that changes nothing"
            assert not gpu.all_processes
            assert not view.grants_on(gpu.uuid)
            return replace(gpu, mode=gpu.pending_mode, instances=())
        case DestroyInstance():
            instance = gpu.instance_at(step.placement)
            assert instance is not None
            assert instance.profile == step.profile
            assert not instance.processes
            assert view.holder_of(gpu.key(instance)) is None
            return replace(gpu, instances=tuple(i for i in gpu.instances if i is not instance))
        case CreateInstance():
            assert gpu.mig_enabled
            assert not gpu.mode_pending
            profile = gpu.profile(step.profile)
            assert profile is not None
            existing = gpu.instance_at(step.placement)
            others = tuple(i for i in gpu.instances if i is not existing)
            promised = view.promised_on(gpu.uuid)
            if existing is not None:
                assert existing.profile == step.profile
                assert not existing.processes
                assert not Counter(existing.slices) - Counter(step.slices)
            else:
                occupants = {Occupant(i.profile, i.placement) for i in others} | set(promised)
                assert fits(profile, step.placement, list(occupants))
            made = filled_instance(profile, step.placement, step.slices, existing)
            assert made != existing, "a creation that changes nothing"
            return replace(gpu, instances=(*others, made))


def arrangements(
    gpu: GpuState, wanted: Counter[ProfileName], taken: tuple[Occupant, ...] = ()
) -> Iterator[frozenset[Occupant]]:
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
            yield from arrangements(gpu, rest - Counter([name]), (*taken, Occupant(name, spot)))
