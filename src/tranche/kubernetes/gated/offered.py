"""What of a node's GPUs a controller may choose, by the node's mode: the view as planning is to see it. Pure."""

from __future__ import annotations

from dataclasses import replace

from tranche.core.allocation import NodeView
from tranche.core.sharing import GpuPolicy, Sharing
from tranche.kubernetes.claims.node_mode import NodeMode


def offered_view(view: NodeView, mode: NodeMode) -> NodeView:
    """The view in which nothing can be had that the mode does not offer.

    A memory limit of the driver is put on a control group, and no container has one before its share is handed over.
    """
    uses = {gpu.uuid: _use(view.use_of(gpu.uuid), mode) for gpu in view.node}
    sharing = replace(view.node.sharing, offered=view.node.sharing.offered - {Sharing.MEMORY_LIMITS})
    return replace(view, node=replace(view.node, sharing=sharing), uses=uses)


def _use(word: GpuPolicy, mode: NodeMode) -> GpuPolicy:
    slices = mode.offers_slices and word in (GpuPolicy.AUTO, GpuPolicy.MIG)
    parts = mode.offers_parts and word in (GpuPolicy.AUTO, GpuPolicy.SHARED)
    if slices and parts:
        return GpuPolicy.AUTO
    if slices:
        return GpuPolicy.MIG
    return GpuPolicy.SHARED if parts else GpuPolicy.OFF
