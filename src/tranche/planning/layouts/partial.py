"""The unblocked part of a blocked change, so that a slice in use blocks only itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import assert_never

from tranche.core.allocation import NodeView
from tranche.core.grid import PlacedInstance, fits
from tranche.core.layout import Layout
from tranche.core.state import GpuState
from tranche.planning.decide.foresee import without
from tranche.planning.layouts.reconfigure import LayoutDecision, plan_layout
from tranche.planning.occupancy.layout_occupancy import gpu_users
from tranche.planning.steps import Step, TakesGpu, TakesInstance, TakesRoom, TakesSharing
from tranche.planning.steps.plan import Plan


def plan_after_blockers(view: NodeView, layout: Layout, decision: LayoutDecision) -> Plan:
    """The plan once all blockers of the decision have ended."""
    return plan_layout(view_after_blockers(view, decision), layout).plan


def view_after_blockers(view: NodeView, decision: LayoutDecision) -> NodeView:
    """The view once all blockers of the decision and all running changes have ended."""
    ids = {allocation.id for user in decision.blockers for allocation in user.allocations}
    pids = {process.pid for user in decision.blockers for process in user.processes}
    return replace(without(view, ids, pids), changing=frozenset())


def plan_beside_blockers(view: NodeView, decision: LayoutDecision, later: Plan) -> Plan:
    """What can be done now: every unblocked change, and the part of blocked ones that touches no users.

    `later` is the plan for after the blockers' end. The steps now are a part of it, so nothing is done twice. A change of MIG
    mode has no parts.
    """
    steps: list[Step] = []
    for change in decision.changes:
        steps += _part(view, change.gpu, later) if change.blockers else change.steps
    touched = {step.gpu_uuid for step in steps}
    prints = {change.gpu.uuid: change.gpu.fingerprint for change in decision.changes if change.gpu.uuid in touched}
    return Plan(decision.purpose, tuple(steps), prints)


def _part(view: NodeView, gpu: GpuState, later: Plan) -> list[Step]:
    planned = later.steps_on(gpu.uuid)
    users = gpu_users(view, gpu)
    if any(isinstance(taking, TakesGpu) for step in planned for taking in step.takes) or users.holders_of_all:
        return []
    idle = {instance.place for instance in users.idle}
    taken = frozenset({*gpu.occupants, *view.promised_on(gpu.uuid)})
    steps: list[Step] = []
    for step in planned:
        after = _taken_after(step, gpu, idle, taken)
        if after is not None:
            taken = after
            steps.append(step)
    return steps


def _taken_after(
    step: Step, gpu: GpuState, idle: Collection[PlacedInstance], taken: frozenset[PlacedInstance]
) -> frozenset[PlacedInstance] | None:
    """The places taken after the step; None if it would touch a user, or has no room yet."""
    for taking in step.takes:
        match taking:
            case TakesSharing(spot):
                if spot is not None and spot not in idle:
                    return None
            case TakesInstance(spot):
                if spot not in idle:
                    return None
                taken -= {spot}
            case TakesRoom(spot):
                if spot in idle:
                    continue
                profile = gpu.profile(spot.profile)
                if profile is None or not fits(profile, spot.placement, taken):
                    return None
                taken |= {spot}
            case TakesGpu():
                return None
            case _:
                assert_never(taking)
    return taken
