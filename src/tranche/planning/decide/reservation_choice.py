"""Which GPUs a new reservation takes, and who may still hold them when it begins. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tranche.core.allocation import Allocation, NodeView, grant_size
from tranche.core.errors import NoRoom
from tranche.core.keeper import ProcessKeeper
from tranche.core.moment import span
from tranche.core.reservation import Reservation
from tranche.core.state import GpuProcess, GpuState
from tranche.planning.decide.foresee import without
from tranche.planning.decide.reservations import is_for, over
from tranche.planning.decide.time_limits import free_by


def choose(view: NodeView, count: int, begins: float, ends: float, named: Collection[str] = ()) -> tuple[GpuState, ...]:
    """The GPUs for a new reservation, in index order: the UUIDs `named`, or those that are free first and then the emptiest.

    All that are free by the beginning are equally good, but those without another reservation are better. Raises NoRoom if there
    are not enough.
    """
    taken = {gpu.uuid: found for gpu in view.node if (found := _overlapping(view, gpu, begins, ends)) is not None}
    closed = {each.place.gpu_uuid for each in view.withheld if each.place.slot is None and not each.for_large}
    asked = [gpu for gpu in view.node if (gpu.uuid in named if named else not gpu.lost and gpu.uuid not in closed)]
    free = sorted((gpu for gpu in asked if gpu.uuid not in taken), key=lambda gpu: _rank(view, gpu, begins))
    if len(free) < count:
        others = "; ".join(f"{gpu.label} is already {taken[gpu.uuid]}" for gpu in asked if gpu.uuid in taken)
        few = f"only {len(free)} GPU{'' if len(free) == 1 else 's'} can be reserved from {span(begins, ends)}"
        if not named and closed:
            few += ", not counting cordoned GPUs"
        raise NoRoom(
            f"{count} GPUs were requested, but {few}{f': {others}' if others else ''}",
            hint="see the reservations with: tranche reserve list",
        )
    return tuple(sorted(free[:count], key=lambda gpu: gpu.index))


def _overlapping(view: NodeView, gpu: GpuState, begins: float, ends: float) -> Reservation | None:
    there = (each for each in view.reservations if gpu.uuid in each.gpu_uuids and not over(view, each))
    return next((each for each in there if each.begins < ends and begins < each.ends), None)


def others_on(view: NodeView, new: Reservation) -> Iterator[tuple[GpuState, Reservation]]:
    """The other reservations of the GPUs. Before a reservation begins, those of an earlier one need time limits."""
    for gpu in view.node:
        if gpu.uuid in new.gpu_uuids:
            there = (each for each in view.reservations if gpu.uuid in each.gpu_uuids and each.id != new.id)
            yield from ((gpu, each) for each in there if not over(view, each))


def _rank(view: NodeView, gpu: GpuState, begins: float) -> tuple[float, bool, bool, int, int]:
    held = [each for each in view.allocations if any(grant.gpu_uuid == gpu.uuid for grant in each.grants)]
    free = max((free_by(each) for each in held), default=begins)
    used = sum(grant_size(grant, gpu).gpu_millionths for grant in view.grants_on(gpu.uuid)) if not gpu.lost else 0
    shared = any(gpu.uuid in each.gpu_uuids and not over(view, each) for each in view.reservations)
    foreign = any(gpu.key(each) not in view.owned for each in gpu.instances) or gpu.mode is not gpu.pending_mode
    return max(free, begins), shared, foreign or bool([*strangers(view, (gpu.uuid,))]), used, gpu.index


def in_the_way(view: NodeView, new: Reservation) -> Iterator[tuple[Allocation, float]]:
    """The shares of others that may hold the GPUs when the reservation begins, each with when it is free at the latest."""
    for each in view.allocations:
        late = free_by(each) > new.begins and any(grant.gpu_uuid in new.gpu_uuids for grant in each.grants)
        if late and not (isinstance(each.keeper, ProcessKeeper) and is_for(new, view, each.keeper.uid)):
            yield each, free_by(each)


def strangers(view: NodeView, gpu_uuids: Collection[str]) -> Iterator[tuple[GpuState, GpuProcess]]:
    """The processes on the GPUs that belong to no share."""
    alone = without(view, [each.id for each in view.allocations])
    for gpu in alone.node:
        if gpu.uuid in gpu_uuids:
            yield from ((gpu, each) for each in gpu.all_processes)
