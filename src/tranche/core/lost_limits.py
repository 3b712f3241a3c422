"""Limits that are no longer kept, so that what was promised is not true any more: the daemon that kept them has died, or somebody
has told it others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tranche.core.allocation import Allocation, FractionalShare, Grant, Phase
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState, GpuState, NodeState


def with_lost_limits(allocations: tuple[Allocation, ...], node: NodeState) -> tuple[Allocation, ...]:
    """The allocations, where parts whose daemon is gone or keeps other limits are unlimited.

    One that is still prepared waits for its daemon.
    """
    if not any(_by_mps(grant) for allocation in allocations for grant in allocation.grants):
        return allocations
    gpus = {gpu.uuid: gpu for gpu in node}
    return tuple(
        replace(each, grants=tuple(_as_kept(grant, gpus) for grant in each.grants))
        if each.phase is Phase.ACTIVE
        else each
        for each in allocations
    )


def limits_lost(grant: Grant, gpu: GpuState) -> bool:
    """Whether the limits of a grant were kept by a daemon that is gone from that GPU, the grant's own, or keeps others now."""
    if not _by_mps(grant) or gpu.lost:
        return False
    daemon = gpu.daemon_of(grant.slot)
    return daemon is None or daemon.limits_changed or daemon.state in (DaemonState.LOST, DaemonState.STARTING)


def _by_mps(grant: Grant) -> bool:
    return isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS and not grant.unlimited


def _as_kept(grant: Grant, gpus: Mapping[str, GpuState]) -> Grant:
    gpu = gpus.get(grant.gpu_uuid)
    if gpu is not None and isinstance(grant, FractionalShare) and limits_lost(grant, gpu):
        return replace(grant, unlimited=True)
    return grant
