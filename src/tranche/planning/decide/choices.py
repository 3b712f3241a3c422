"""Every way in which one GPU could serve a candidate now: something for one holder alone, or else a part of a shared device."""

from __future__ import annotations

from tranche.planning.decide.candidates import Candidate
from tranche.planning.decide.obstacle import Obstacle
from tranche.planning.decide.options import Option, PlanPermission, slice_obstacle, ways_alone
from tranche.planning.decide.part_options import part_options
from tranche.planning.decide.withholding import closed, permitted, withheld_from, withholding
from tranche.planning.occupancy.gpu_occupancy import GpuOccupancy


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
