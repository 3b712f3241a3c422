"""Carry out a Plan on a GpuState by the rules of the grid alone, refusing what a driver would refuse."""

from __future__ import annotations

from dataclasses import replace

from tests.strategies import instance_of
from tranche.core.allocation import NodeView
from tranche.core.grid import Occupant, fits
from tranche.core.state import GpuState, MigMode, NodeState
from tranche.planning.plan import CreateInstance, DestroyInstance, Plan, ResetGpu, SetMigMode, Step


def carry_out(view: NodeView, plan: Plan) -> NodeView:
    """The view after the plan; AssertionError when a step breaks a rule."""
    states = {gpu.uuid: gpu for gpu in view.node}
    for uuid, fingerprint in plan.fingerprints.items():
        assert states[uuid].fingerprint == fingerprint
    assert set(plan.fingerprints) == set(plan.gpu_uuids)
    for step in plan.steps:
        states[step.gpu_uuid] = _after(view, states[step.gpu_uuid], step)
    return replace(view, node=NodeState(tuple(states.values())))


def _after(view: NodeView, gpu: GpuState, step: Step) -> GpuState:
    match step:
        case SetMigMode(enabled=enabled):
            assert gpu.mig_capable
            assert not gpu.all_processes
            assert not gpu.instances
            mode = MigMode.ENABLED if enabled else MigMode.DISABLED
            return replace(gpu, pending_mode=mode, mode=gpu.mode if gpu.mode_change_needs_reset else mode)
        case ResetGpu():
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
            if existing is not None:
                assert existing.profile == step.profile
                assert not existing.compute_instances
            assert fits(profile, step.placement, [Occupant(i.profile, i.placement) for i in others])
            assert step.slices == (step.profile,)
            return replace(gpu, instances=(*others, instance_of(profile, step.placement)))
