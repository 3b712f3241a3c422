"""A node's state if something ended or were granted: views for "what if" questions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tranche.core.allocation import Allocation, NodeView, Phase
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import Request
from tranche.core.state import ComputeInstance, GpuInstance, GpuState, InstanceKey
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
    return replace(
        gpu,
        instances=tuple(_emptied(each, gpu.key(each) in slots, process_ids) for each in gpu.instances),
        processes=() if whole else tuple(p for p in gpu.processes if p.pid not in process_ids),
    )


def _emptied(instance: GpuInstance, entirely: bool, process_ids: Collection[int]) -> GpuInstance:
    def left(device: ComputeInstance) -> ComputeInstance:
        kept = () if entirely else tuple(p for p in device.processes if p.pid not in process_ids)
        return device._replace(processes=kept)

    return instance._replace(
        compute_instances=tuple(map(left, instance.compute_instances)),
        stray_processes=() if entirely else tuple(p for p in instance.stray_processes if p.pid not in process_ids),
    )
