"""What each GPU answers to a request: how it would serve it best, or what is in the way. A long list is cut short.

A GPU serves a candidate by something for one holder alone, or else by a part of a shared device. It withholds places from
requests. One that has reported an error is withheld from everybody. One that is kept for large requests is withheld from those
that name an amount, or a smaller size.

A machine with room to spare gives the strongest fence that is free. One that fills up looks first at what it keeps for others:
GPUs on which nothing is, which only a request for a whole GPU, a large one or one for slices makes full use of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from tranche.core.allocation import ComputeSlice, FractionalShare, NodeView, WithheldDevice, memory_of, out_of_reach
from tranche.core.profile import size_rank
from tranche.core.request import GpuMemory, GpuShare, Request
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import GpuState
from tranche.planning.decide.candidates import Candidate, candidate, gpus_needed
from tranche.planning.decide.obstacle import CommonReason, Obstacle, Reason, more_alike, obstacle
from tranche.planning.decide.options import Option, OptionKind, PlanPermission, gpu_blocked, slice_obstacle, ways_alone
from tranche.planning.decide.part_options import part_options
from tranche.planning.decide.share_options import ShareOptions, accepted, rules_of
from tranche.planning.decide.tables import geometry_of, place_cost
from tranche.planning.occupancy.gpu_occupancy import GpuOccupancy, tenancies

# Machines with more GPUs than this name one GPU for all that answer alike, and so many of these at most.
NAMED_AT_MOST = 16

# What is for one alone comes first, and then the mechanisms in the order of their strength.
_STRENGTHS = {sharing: number for number, sharing in enumerate(Sharing, start=1)}
_WEAKEST = len(_STRENGTHS)

# In bytes.
_MORE_THAN_ANY_GPU = 1 << 60

# The UUIDs of GPUs that may not be used, with the waiter that each is kept for.
Reserved = Mapping[str, str]

# What makes one option better than another, lowest first: how weak its walls are, whether MIG mode changes, the change, instances
# destroyed, bytes given, and what the place costs the GPU, or of parts the bytes that are left for others. Of a slice that is not
# all of a GPU, the change and the instances that were made for requests count in the place's cost.
Preference = tuple[int, bool, int, int, int, float]


@dataclass(frozen=True, slots=True)
class _AskedGpu:
    """A GPU that a request is put to: what is on it, what of it would serve the request were it empty, or why nothing would, and
    the earlier waiter that it is kept for, "" when there is none.
    """

    here: GpuOccupancy
    candidate: Candidate | Obstacle
    kept_for: str = ""

    def best_option(self, freedom: PlanPermission, *, thrifty: bool) -> tuple[Preference, Option] | None:
        """The best way to serve the request on this GPU now, with what is to be said for it; None when there is no way."""
        if isinstance(self.candidate, Obstacle) or self.here.changing or self.kept_for:
            return None
        return best_option(self.here, self.candidate, freedom, thrifty=thrifty)

    def answer(self, freedom: PlanPermission) -> GpuFit:
        """Whether the GPU could serve the request now, and what is in the way when it could not."""
        gpu = self.here.gpu
        # The driver may lose sight of a GPU that is being reset.
        if self.here.changing and (gpu.lost or isinstance(self.candidate, Candidate)):
            return GpuFit(gpu, obstacle(gpu, Reason.LAYOUT_CHANGING, "a declared layout is being applied to it"))
        if isinstance(self.candidate, Obstacle):
            return GpuFit(gpu, self.candidate)
        if (shut := _closed(self.here)) is not None:
            return GpuFit(gpu, shut)
        if self.kept_for:
            return GpuFit(gpu, obstacle(gpu, Reason.QUEUED_BEHIND, f"kept for {self.kept_for}, which asked earlier"))
        found = _options(self.here, self.candidate, freedom)
        return GpuFit(gpu, found if isinstance(found, Obstacle) else None)


@dataclass(frozen=True, slots=True)
class GpuFit:
    """What one GPU says to the request: `obstacle` is None when the GPU could serve it (or its share of it) now.

    `alike` counts further GPUs that answer alike and are not named.
    """

    gpu: GpuState
    obstacle: Obstacle | None
    alike: int = 0

    @property
    def text(self) -> str:
        """One line for people."""
        return ("can serve it now" if self.obstacle is None else self.obstacle.text) + more_alike(self.alike)


@dataclass(frozen=True, slots=True)
class GpuFitList:
    """One answer for each GPU or, on a large machine, for those that answer alike; `unnamed` counts GPUs that none is for."""

    named: tuple[GpuFit, ...]
    unnamed: int = 0

    @property
    def ready(self) -> int:
        """How many GPUs could serve the request, or their share of it, now."""
        return sum(1 + each.alike for each in self.named if each.obstacle is None)

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """What is in the way, where something is."""
        return tuple(
            each.obstacle if not each.alike else replace(each.obstacle, alike=each.alike)
            for each in self.named
            if each.obstacle is not None
        )


def asked_gpus(view: NodeView, request: Request, reserved: Reserved) -> tuple[_AskedGpu, ...]:
    """The request put to every GPU of the view, in index order."""
    return tuple(
        _AskedGpu(here, candidate(request, here.gpu, rules_of(view, here.gpu)), reserved.get(here.gpu.uuid, ""))
        for here in tenancies(view)
    )


def best_option(
    here: GpuOccupancy, answer: Candidate, freedom: PlanPermission, *, thrifty: bool
) -> tuple[Preference, Option] | None:
    """The cheapest way to serve the candidate on that GPU, with what is to be said for it; None when there is no way.

    Strongest walls first, then the cheapest change, fewest instances destroyed, least memory given, of parts the least room left
    over, the lowest start. Of slices that are not all of a GPU: an idle one that a layout or another tool made, fewest of these
    destroyed, the least memory, the place that costs least. Before all that, on a `thrifty` machine, which is careful with its
    room, what takes the least from those to come.
    """
    found = (_all_ways if thrifty else _ways)(here, answer, freedom)
    if isinstance(found, Obstacle) or not found:
        return None
    geometry = geometry_of(here.gpu.memory_slices, here.gpu.profiles)

    def preference(option: Option) -> Preference:
        taken = _toll(here, option, answer.part) * (_WEAKEST + 1) if thrifty else 0
        mode = option.change is OptionKind.MODE
        if isinstance(option.grant, FractionalShare):
            strength = taken + _STRENGTHS[option.grant.sharing]
            # A GPU that can be cut is opened for parts after all others, so that it can be cut for somebody.
            last = option.change is not OptionKind.NONE and option.grant.slot is None and option.gpu.mig_capable
            left = option.left + last * _MORE_THAN_ANY_GPU
            return (strength, mode, option.change, option.destroys, option.memory, left)
        slot = option.grant.slot
        destroys = option.destroys
        if slot is None or slot.placement.size == here.gpu.memory_slices:
            return (taken, mode, option.change, destroys, option.memory, 0.0)
        as_found = option.change <= OptionKind.FILL and not option.replaceable
        recut = destroys + (option.change is not OptionKind.NONE)
        cost = place_cost(geometry, option.mask, slot.placement.mask, recut)
        effort = OptionKind.NONE if as_found else OptionKind.CREATE
        return (taken, mode, effort, 0 if option.replaceable else destroys, option.memory, cost)

    def start(option: Option) -> int:
        return 0 if option.grant.slot is None else option.grant.slot.placement.start

    ranked = [(preference(option), start(option), option) for option in found]
    best = min(ranked, key=lambda each: each[:2])
    return best[0], best[2]


def answers(asked: Sequence[_AskedGpu], freedom: PlanPermission) -> GpuFitList:
    """What the GPUs answer, in index order."""
    every = [each.answer(freedom) for each in asked]
    if len(every) <= NAMED_AT_MOST:
        return GpuFitList(tuple(every))
    groups: dict[CommonReason | None, list[int]] = {}
    for place, each in enumerate(every):
        groups.setdefault(None if each.obstacle is None else each.obstacle.likeness, []).append(place)
    # Those that can serve the request are named in any case.
    by_place = sorted(groups.items(), key=lambda group: (group[0] is not None, group[1][0]))
    named = sorted((places[0], len(places)) for _, places in by_place[:NAMED_AT_MOST])
    unnamed = sum(len(places) for _, places in by_place[NAMED_AT_MOST:])
    return GpuFitList(tuple(replace(every[place], alike=count - 1) for place, count in named), unnamed)


def _withheld_from(tenancy: GpuOccupancy, candidate: Candidate) -> GpuOccupancy:
    """The tenancy with those places alone that are withheld from the candidate."""
    if not tenancy.withheld:
        return tenancy
    return tenancy._replace(withheld=tuple(each for each in tenancy.withheld if _applies(each, candidate)))


def _permitted(tenancy: GpuOccupancy, found: tuple[Option, ...] | Obstacle) -> tuple[Option, ...] | Obstacle:
    """The options that touch nothing that is withheld."""
    if not tenancy.withheld or isinstance(found, Obstacle):
        return found
    return tuple(each for each in found if not any(out_of_reach(each.grant, kept.place) for kept in tenancy.withheld))


def _withholding(tenancy: GpuOccupancy) -> Obstacle:
    """What is withheld of the GPU, and why: errors first."""
    first = sorted(tenancy.withheld, key=lambda each: not each.faulty)
    return obstacle(tenancy.gpu, Reason.WITHHELD, "; ".join(dict.fromkeys(each.why for each in first)))


def _closed(tenancy: GpuOccupancy) -> Obstacle | None:
    """That the whole GPU is withheld from everybody, which stays true when whoever holds it has ended; None when it is not."""
    whole = tuple(each for each in tenancy.withheld if each.place.slot is None and not each.for_large)
    return _withholding(tenancy._replace(withheld=whole)) if whole and not tenancy.gpu.lost else None


def _applies(withheld: WithheldDevice, candidate: Candidate) -> bool:
    if not withheld.for_large or not candidate.named:
        return True
    wanted = None if candidate.profile is None else candidate.profile.name
    kept = withheld.place.slot
    return size_rank(wanted) < size_rank(None if kept is None else kept.profile)


def _options(tenancy: GpuOccupancy, candidate: Candidate, freedom: PlanPermission) -> tuple[Option, ...] | Obstacle:
    """The ways to serve the candidate on that GPU now, or what is in the way: what lasts longest is named first."""
    if (shut := _closed(tenancy)) is not None:
        return shut
    found = _ways(tenancy, candidate, freedom)
    if found and not isinstance(found, Obstacle):
        return found
    if (here := _withheld_from(tenancy, candidate)).withheld:
        free = _ways(tenancy._replace(withheld=()), candidate, freedom)
        if free and not isinstance(free, Obstacle):
            return _withholding(here)
    if isinstance(found, Obstacle) or candidate.profile is None:
        return found
    return slice_obstacle(tenancy, candidate.profile)


def _ways(tenancy: GpuOccupancy, candidate: Candidate, freedom: PlanPermission) -> tuple[Option, ...] | Obstacle:
    """As `_options`, but none at all where a slice finds no room: why it finds none takes longer to say."""
    here, wish = _withheld_from(tenancy, candidate), candidate.part
    if wish is None:
        return _permitted(here, ways_alone(here, candidate, freedom))
    alone = _permitted(here, ways_alone(here, candidate, freedom)) if candidate.alone else ()
    if not isinstance(alone, Obstacle) and alone:
        return alone
    parts = _permitted(here, part_options(here, wish, freedom))
    # Of a GPU that is shared it matters why no more parts of it are given; of any other, why it has no room for one alone.
    return alone if isinstance(parts, Obstacle) and candidate.alone and None not in tenancy.shared else parts


def _all_ways(tenancy: GpuOccupancy, candidate: Candidate, freedom: PlanPermission) -> tuple[Option, ...] | Obstacle:
    """As `_ways`, but what is for one holder alone and the parts as well."""
    if candidate.part is None or not candidate.alone:
        return _ways(tenancy, candidate, freedom)
    here = _withheld_from(tenancy, candidate)
    found = (ways_alone(here, candidate, freedom), part_options(here, candidate.part, freedom))
    every = tuple(option for each in found if not isinstance(each, Obstacle) for option in each)
    return _permitted(here, every)


class _PackingCost(IntEnum):
    """What an option takes from those to come, least first; GPUs in use are those that nobody could have whole now anyway.

    FITTING: a slice of a GPU in use, of which the request needs more than half. JOINED: one more part of a shared device. BESIDE:
    the first part of a slice, on a GPU in use. ROOMY: a slice of a GPU in use, of which the request leaves half or more unused.
    WHOLE: a whole GPU, of which the request needs more than half. OPENED: the first part of a GPU that is not cut. CUT: what lies
    on a GPU that is cut and on which nothing is. SPREAD: all else, such as cutting one more GPU.
    """

    FITTING = 0
    JOINED = 1
    BESIDE = 2
    ROOMY = 3
    WHOLE = 4
    OPENED = 5
    CUT = 6
    SPREAD = 7


def why_thrifty(request: Request, means: MachineSharing, gpus: Sequence[GpuOccupancy]) -> str:
    """Why the machine is careful with its room, in words that follow "because"; "" when it has room to spare.

    It has as long as slices are all that anybody holds, and half of its GPUs would stay untouched if the request took one more.
    Where nothing can be shared, and for a request that accepts no part, there is nothing to be careful with.
    """
    if not isinstance(request.demand, GpuMemory | GpuShare) or not accepted(request):
        return ""
    if not means.offered:
        return ""
    if any(here.whole for here in gpus):
        return "GPUs are held whole or in parts here"
    untouched = sum(
        here.untouched and not here.changing and not here.withheld and gpu_blocked(here) is None for here in gpus
    )
    if 2 * (untouched - gpus_needed(request)) < len(gpus):
        return "fewer than half of the GPUs would stay untouched"
    return ""


def _toll(here: GpuOccupancy, option: Option, wish: ShareOptions | None) -> _PackingCost:
    """What the option takes from those to come; `wish` is the part that would serve the request, where one would."""
    whole = option.grant.slot is None
    if isinstance(option.grant, FractionalShare):
        if option.change is OptionKind.NONE:
            return _PackingCost.JOINED
        if not here.untouched:
            return _PackingCost.BESIDE
        return _PackingCost.OPENED if whole else _PackingCost.CUT
    assert not isinstance(option.grant, ComputeSlice)
    fitting = wish is not None and 2 * wish.amount > memory_of(option.grant, here.gpu)
    if not here.untouched:
        return _PackingCost.FITTING if fitting else _PackingCost.ROOMY
    if whole:
        return _PackingCost.WHOLE if fitting else _PackingCost.SPREAD
    return _PackingCost.CUT if fitting and option.change is not OptionKind.MODE else _PackingCost.SPREAD
