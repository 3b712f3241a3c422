"""What a plan does to a machine, without the machine: the view as it is expected to be once every step has acted.

Allocations are not touched: who holds what is not the plan's to say. Numbers that only a driver gives (ids of instances, UUIDs of
new slices, free memory) are not foreseen, nor for whom an instance was made; mode, slots, compute slices, processes and what
Tranche made are.
"""

from __future__ import annotations

from dataclasses import replace

from tranche.core.allocation import NodeView
from tranche.planning.steps.plan import Plan


def apply(plan: Plan, view: NodeView) -> NodeView:
    """The view after the plan; GpuNotFound when the plan names a GPU that the view does not have."""
    gpus = {gpu.uuid: gpu for gpu in view.node}
    owned = set(view.owned)
    for step in plan.steps:
        gpu = gpus.get(step.gpu_uuid) or view.node.gpu(step.gpu_uuid)
        if step.in_effect(gpu):
            continue
        for key, ours in step.ownership(step.observe(gpu, frozenset(owned))).items():
            (owned.add if ours else owned.discard)(key)
        gpus[gpu.uuid] = step.apply(gpu)
    node = replace(view.node, gpus=tuple(gpus.values()))
    return replace(view, node=node, owned=frozenset(owned), requested=view.requested & owned)
