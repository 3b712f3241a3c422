"""GPUs that are no whole ones to a container: cut into slices on demand, and left so when the node's mode became static. Pure."""

from __future__ import annotations

from tranche.core.allocation import NodeView
from tranche.core.state import GpuState


def why_still_cut(view: NodeView, gpu: GpuState) -> str:
    """Why the GPU is not given away as a whole, where no layout has cut it; "" when it may be.

    A program that is given a GPU in MIG mode uses one slice of it, whichever comes first.
    """
    ours = sum(gpu.key(each) in view.owned for each in gpu.instances)
    if not gpu.mig_enabled or not ours:
        return ""
    slices = f"{ours} slice{'s' if ours > 1 else ''}"
    return f"it is still cut into {slices} made on demand: label the node nvidia.com/mig.config=all-disabled to have it whole"
