"""A node's state if something ended or were granted: views for "what if" questions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tranche.core.allocation import Allocation, NodeView, Phase
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import Request
from tranche.core.state import GpuState, InstanceKey
from tranche.planning.decide.allocate import Granted
from tranche.planning.steps.plan import apply


def without(view: NodeView, allocation_ids: Collection[str], process_ids: Collection[int] = ()) -> NodeView:
    """The view after the end of those allocations, with their programs, and of those processes."""
    ended = [each for each in view.allocations if each.id in allocation_ids]
    slots = {grant.slot for each in ended for grant in each.grants if grant.slot is not None}
    wholes = {grant.gpu_uuid for each in ended for grant in each.grants if grant.slot is None}
    gpus = tuple(_ended(gpu, slots, gpu.uuid in wholes, process_ids) for gpu in view.node)
    kept = tuple(each for each in view.allocations if each.id not in allocation_ids)
    return replace(view, node=replace(view.node, gpus=gpus), allocations=kept)


def with_granted(view: NodeView, request: Request, granted: Granted) -> NodeView:
    """The view after the grant's plan, with its slots promised to the user that the view's decision is for."""
    id, keeper = f"foreseen-{len(view.allocations)}", ProcessKeeper(uid=view.asker)
    allocation = Allocation(id, request, granted.grants, Phase.PREPARING, 0.0, keeper=keeper)
    return replace(apply(granted.plan, view), allocations=(*view.allocations, allocation))


def _ended(gpu: GpuState, slots: Collection[InstanceKey], whole: bool, process_ids: Collection[int]) -> GpuState:
    kept = tuple(each.with_processes(lambda _: ()) if gpu.key(each) in slots else each for each in gpu.instances)
    left = replace(gpu, instances=kept, processes=() if whole else gpu.processes)
    return left.with_processes(lambda found: tuple(each for each in found if each.pid not in process_ids))
