"""Which devices may be offered under a resource: those that nobody has, or a pod that was given them as this resource. Pure.

A kubelet counts what it gave away by resource. A device that was given away under another one, that a command on the machine
holds, or that a pod still uses which the kubelet has forgotten, must not appear in a list from which it would be given again.
"""

from __future__ import annotations

from collections.abc import Iterable

from tranche.core.allocation import Allocation, Grant, overlap
from tranche.core.keeper import PodKeeper


def held_otherwise(grant: Grant, resource: str, allocations: Iterable[Allocation]) -> Allocation | None:
    """The allocation because of which the device must not be offered as that resource; None when it may be."""
    for allocation in allocations:
        keeper = allocation.keeper
        as_this = isinstance(keeper, PodKeeper) and keeper.resource == resource and not keeper.lingers
        if any(overlap(grant, held) and not (as_this and held == grant) for held in allocation.grants):
            return allocation
    return None
