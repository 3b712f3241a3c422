"""Under which rules a GPU is shared: what the machine can do, and what the administrator wants."""

from __future__ import annotations

from dataclasses import dataclass

from tranche.core.allocation import NodeView
from tranche.core.gpu_use import GpuPolicy
from tranche.core.sharing import NO_SHARING, MachineSharing, Sharing
from tranche.core.state import GpuState

_FIRST_WITH_LIMITS = (7, 0)
"""MPS limits the memory of its clients from Volta on."""


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """The administrator's word on one GPU, and the machine's means."""

    use: GpuPolicy = GpuPolicy.AUTO
    means: MachineSharing = NO_SHARING

    def why_not(self, sharing: Sharing, gpu: GpuState) -> str:
        """Why that GPU cannot be shared by the mechanism, in words; "" when it can."""
        capability = gpu.compute_capability
        if sharing is Sharing.MPS and capability is not None and capability < _FIRST_WITH_LIMITS:
            return f"{gpu.architecture or gpu.name} is older than Volta"
        return self.means.why_not(sharing)


NO_RULES = GpuSharing()
"""Of a GPU of which nobody has said anything, on a machine that was not asked."""


def rules_of(view: NodeView, gpu: GpuState) -> GpuSharing:
    """The rules of one of the view's GPUs."""
    return GpuSharing(view.use_of(gpu.uuid), view.node.sharing)
