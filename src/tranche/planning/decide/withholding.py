"""Which places a GPU withholds from a request, and what of the ways to serve it is left then.

A place that has reported an error is withheld from everybody. One that is kept for large requests is withheld from those that
name an amount, or a smaller size.
"""

from __future__ import annotations

from tranche.core.allocation import WithheldDevice, out_of_reach
from tranche.core.profile import ProfileName
from tranche.planning.decide.candidates import Candidate
from tranche.planning.decide.obstacle import Obstacle, Reason, obstacle
from tranche.planning.decide.options import Option
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


def size_rank(profile: ProfileName | None) -> tuple[int, int]:
    """By which sizes compare: whole GPUs (None) are the largest, then memory decides, then compute."""
    return (1 << 30, 0) if profile is None else (profile.memory_gb, profile.slices)


def _applies(withheld: WithheldDevice, candidate: Candidate) -> bool:
    if not withheld.for_large or not candidate.named:
        return True
    wanted = None if candidate.profile is None else candidate.profile.name
    kept = withheld.place.slot
    return size_rank(wanted) < size_rank(None if kept is None else kept.profile)
