"""What the machine itself did to its GPUs when it booted: a cut of ours that failed, or partitions that its system made."""

from __future__ import annotations

from tranche.core.allocation import NodeView
from tranche.core.events import BootEnded, Event
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.mig_manager.state import MigState, Report

_BOTTLEROCKET = "Bottlerocket"


def failed_boot(ended: Event | None) -> Report | None:
    """What to say of a cut at boot that failed; None of one that succeeded, or when none was asked for."""
    if ended is None or not isinstance(ended.data, BootEnded) or not ended.data.reason:
        return None
    return Report(MigState.FAILED, ended.data.reason, ended.message)


def partitioned_by_system(node: KubeNode, view: NodeView) -> str | None:
    """Who partitions the node's GPUs at each boot beside Tranche, as a phrase; None when nobody is known to.

    Bottlerocket does, where its settings say so. A node shows its system, but not the system's settings; so GPU instances on such
    a node that Tranche did not make are taken for Bottlerocket's.
    """
    if not node.os_image.startswith(_BOTTLEROCKET):
        return None
    if all(gpu.key(instance) in view.owned for gpu in view.node for instance in gpu.instances):
        return None
    return f"{node.os_image}, which made the GPU instances by settings.kubelet-device-plugins.nvidia"
