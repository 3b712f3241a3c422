"""Why a device of the node cannot be had now, as taints. Pure.

A device never leaves the pool for such a reason: the scheduler counts on it for whoever has it. Nor is a device tainted for what
claims have of it: the scheduler knows that, until somebody deletes the claim.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tranche.core.allocation import Grant, NodeView, Slice, WholeGpu, overlap
from tranche.core.grid import PlacedInstance
from tranche.core.keeper import ClaimKeeper
from tranche.core.sharing import GpuPolicy
from tranche.core.state import GpuInstance
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import TaintKey
from tranche.kubernetes.devices.devices import NodeDevice
from tranche.planning.decide.options import gpu_blocked
from tranche.planning.decide.realise import foreign_in_the_way
from tranche.planning.occupancy.gpu_occupancy import GpuOccupancy, tenancy


@dataclass(frozen=True, slots=True)
class TaintFacts:
    """What speaks against devices beside the view: the node's mode, what reported an error that programs do not survive, and
    claims, by uid, that are over while their pods run on: the scheduler takes for free what these have.
    """

    mode: NodeMode
    faulty: Collection[WholeGpu | Slice] = frozenset()
    fallen: Collection[str] = frozenset()


def reasons_against(
    devices: Collection[NodeDevice], view: NodeView, known: TaintFacts
) -> dict[str, tuple[TaintKey, ...]]:
    """Why each device cannot be had, by its name; nothing where it can."""
    tenancies = {gpu.uuid: tenancy(view, gpu) for gpu in view.node}
    held = _held_without_claim(view, known.fallen)
    # Also those that claims have: the scheduler takes their room for free at the moment when they are given back.
    foreign = {gpu.uuid: [each for each in gpu.instances if gpu.key(each) not in view.owned] for gpu in view.node}
    found = {}
    for each in devices:
        here = tenancies[each.gpu_uuid]
        against = _reasons(each, here, held.get(each.gpu_uuid, ()), view, known)
        if foreign_in_the_way(each.offered, here.gpu, foreign[each.gpu_uuid]):
            against.add(TaintKey.FOREIGN)
        found[each.name] = tuple(sorted(against))
    return found


def _reasons(
    device: NodeDevice, here: GpuOccupancy, held: Collection[Grant], view: NodeView, known: TaintFacts
) -> set[TaintKey]:
    uuid = device.gpu_uuid
    found = set()
    if here.gpu.lost:
        found.add(TaintKey.LOST)
    if any(overlap(device.offered, each) for each in known.faulty):
        found.add(TaintKey.FAULTY)
    if not is_offered(device, known.mode, view.use_of(uuid)) or _cordoned(here, known):
        found.add(TaintKey.MODE)
    blocked = not here.gpu.lost and not here.allocations and gpu_blocked(here) is not None
    if blocked or uuid in view.changing or any(excludes(device, each) for each in held):
        found.add(TaintKey.HELD)
    if any(_in_the_way(device, each) for each in here.in_use):
        found.add(TaintKey.HELD)
    return found


def _cordoned(here: GpuOccupancy, known: TaintFacts) -> bool:
    """Whether the administrator wants nothing more of the GPU given away; what is faulty is said by a taint of its own."""
    return any(
        isinstance(each.place, WholeGpu) and each.place not in known.faulty
        for each in here.withheld
        if not each.for_large
    )


def is_offered(device: NodeDevice, mode: NodeMode, use: GpuPolicy) -> bool:
    """Whether claims get such a device in the mode, where the administrator's word on the GPU is `use`."""
    if not mode.by_claims:
        return False
    if device.sharing is not None:
        return (
            mode.offers_parts
            and use in (GpuPolicy.AUTO, GpuPolicy.SHARED)
            and not (use is GpuPolicy.SHARED and device.profile)
        )
    if device.profile is not None:
        return mode.offers_slices and use in (GpuPolicy.AUTO, GpuPolicy.MIG)
    return True


def _held_without_claim(view: NodeView, fallen: Collection[str]) -> dict[str, list[Grant]]:
    found: dict[str, list[Grant]] = {}
    for allocation in view.allocations:
        if not isinstance(allocation.keeper, ClaimKeeper) or allocation.keeper.uid in fallen:
            for grant in allocation.grants:
                found.setdefault(grant.gpu_uuid, []).append(grant)
    return found


def excludes(device: NodeDevice, grant: Grant) -> bool:
    """Whether the device cannot be had beside the grant."""
    offered, slot = device.offered, grant.slot
    if overlap(offered, grant):
        return True
    if isinstance(offered, WholeGpu) or slot is None:
        return False
    here, there = PlacedInstance(offered.profile, offered.placement), PlacedInstance(slot.profile, slot.placement)
    return here.conflicts(there)


def _in_the_way(device: NodeDevice, instance: GpuInstance) -> bool:
    if not isinstance(device.offered, Slice):
        return True
    here = PlacedInstance(device.offered.profile, device.offered.placement)
    return here.conflicts(PlacedInstance(instance.profile, instance.placement))
