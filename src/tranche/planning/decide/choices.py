"""Every way in which one GPU could serve a candidate now: something for one holder alone, or else a part of a shared device.

A GPU withholds places from requests. One that has reported an error is withheld from everybody. One that is kept for large
requests is withheld from those that name an amount, or a smaller size.
"""

from __future__ import annotations

from tranche.core.allocation import WithheldDevice, out_of_reach
from tranche.core.profile import size_rank
from tranche.planning.decide.candidates import Candidate
from tranche.planning.decide.obstacle import Obstacle, Reason, obstacle
from tranche.planning.decide.options import Option, PlanPermission, slice_obstacle, ways_alone
from tranche.planning.decide.part_options import part_options
from tranche.planning.occupancy.gpu_occupancy import GpuOccupancy


def withheld_from(tenancy: GpuOccupancy, candidate: Candidate) -> GpuOccupancy:
    """The tenancy with those places alone that are withheld from the candidate."""
    if not tenancy.withheld:
        return tenancy
    return tenancy._replace(withheld=tuple(each for each in tenancy.withheld if _applies(each, candidate)))


def permitted(tenancy: GpuOccupancy, found: tuple[Option, ...] | Obstacle) -> tuple[Option, ...] | Obstacle:
    """The options that touch nothing that is withheld."""
    if not tenancy.withheld or isinstance(found, Obstacle):
        return found
    return tuple(each for each in found if not any(out_of_reach(each.grant, kept.place) for kept in tenancy.withheld))


def withholding(tenancy: GpuOccupancy) -> Obstacle:
    """What is withheld of the GPU, and why: errors first."""
    first = sorted(tenancy.withheld, key=lambda each: not each.faulty)
    return obstacle(tenancy.gpu, Reason.WITHHELD, "; ".join(dict.fromkeys(each.why for each in first)))


def closed(tenancy: GpuOccupancy) -> Obstacle | None:
    """That the whole GPU is withheld from everybody, which stays true when whoever holds it has ended; None when it is not."""
    whole = tuple(each for each in tenancy.withheld if each.place.slot is None and not each.for_large)
    return withholding(tenancy._replace(withheld=whole)) if whole and not tenancy.gpu.lost else None


def _applies(withheld: WithheldDevice, candidate: Candidate) -> bool:
    if not withheld.for_large or not candidate.named:
        return True
    wanted = None if candidate.profile is None else candidate.profile.name
    kept = withheld.place.slot
    return size_rank(wanted) < size_rank(None if kept is None else kept.profile)


def options(tenancy: GpuOccupancy, candidate: Candidate, freedom: PlanPermission) -> tuple[Option, ...] | Obstacle:
    """The ways to serve the candidate on that GPU now, or what is in the way: what lasts longest is named first."""
    if (shut := closed(tenancy)) is not None:
        return shut
    found = ways(tenancy, candidate, freedom)
    if found and not isinstance(found, Obstacle):
        return found
    if (here := withheld_from(tenancy, candidate)).withheld:
        free = ways(tenancy._replace(withheld=()), candidate, freedom)
        if free and not isinstance(free, Obstacle):
            return withholding(here)
    if isinstance(found, Obstacle) or candidate.profile is None:
        return found
    return slice_obstacle(tenancy, candidate.profile)


def ways(tenancy: GpuOccupancy, candidate: Candidate, freedom: PlanPermission) -> tuple[Option, ...] | Obstacle:
    """As `options`, but none at all where a slice finds no room: why it finds none takes longer to say."""
    here, wish = withheld_from(tenancy, candidate), candidate.part
    if wish is None:
        return permitted(here, ways_alone(here, candidate, freedom))
    alone = permitted(here, ways_alone(here, candidate, freedom)) if candidate.alone else ()
    if not isinstance(alone, Obstacle) and alone:
        return alone
    parts = permitted(here, part_options(here, wish, freedom))
    # Of a GPU that is shared it matters why no more parts of it are given; of any other, why it has no room for one alone.
    return alone if isinstance(parts, Obstacle) and candidate.alone and None not in tenancy.shared else parts


def all_ways(tenancy: GpuOccupancy, candidate: Candidate, freedom: PlanPermission) -> tuple[Option, ...] | Obstacle:
    """As `ways`, but what is for one holder alone and the parts as well."""
    if candidate.part is None or not candidate.alone:
        return ways(tenancy, candidate, freedom)
    here = withheld_from(tenancy, candidate)
    found = (ways_alone(here, candidate, freedom), part_options(here, candidate.part, freedom))
    every = tuple(option for each in found if not isinstance(each, Obstacle) for option in each)
    return permitted(here, every)
