"""Each GPU's answer to a request: its best option, or the obstacle. Shortens long lists.

A GPU serves a candidate by an exclusive device, or else by a part of a shared device. It withholds places from requests. A place
that reported an error is withheld from all requests. A place kept for large requests is withheld from requests for an amount or a
smaller size.

A machine with room to spare grants the strongest isolation that is free. A machine that fills up first saves its room for others:
untouched GPUs, which only a request for a whole GPU, a large one or one for slices uses fully.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tranche.core.allocation import ComputeSlice, FractionalShare, NodeView, WithheldDevice, memory_of, out_of_reach
from tranche.core.profile import size_rank
from tranche.core.request import GpuMemory, GpuShare, Request
from tranche.core.reservation import Reservation
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import GpuState
from tranche.planning.decide.candidates import Candidate, gpus_needed
from tranche.planning.decide.obstacle import CommonReason, Obstacle, Reason, more_alike, obstacle
from tranche.planning.decide.options import Option, OptionKind, gpu_blocked, slice_obstacle, ways_alone
from tranche.planning.decide.part_options import part_options
from tranche.planning.decide.quota import candidates_within_quota
from tranche.planning.decide.reservations import closing, why_closed
from tranche.planning.decide.share_options import ShareOptions, accepted
from tranche.planning.decide.tables import geometry_of, place_cost
from tranche.planning.decide.time_limits import free_at
from tranche.planning.occupancy.gpu_occupancy import GpuOccupancy, tenancies

# Machines with more GPUs than this name one GPU for each group of similar answers, and at most this many.
NAMED_AT_MOST = 16

# Exclusive devices come first, then the mechanisms by strength.
_STRENGTHS = {sharing: number for number, sharing in enumerate(Sharing, start=1)}
_WEAKEST = len(_STRENGTHS)

# In bytes.
_MORE_THAN_ANY_GPU = 1 << 60

# The UUIDs of reserved GPUs, each with the waiter that it is kept for.
Reserved = Mapping[str, str]

# Compares options, lowest first: weakness of the walls, whether MIG mode changes, the change, instances destroyed, bytes
# granted, and what the place costs the GPU, or for parts the bytes left for others. For a slice smaller than its GPU, the
# place's cost includes the change and the instances made for requests.
Preference = tuple[int, bool, int, int, int, float]


class _AskedGpu(NamedTuple):
    """A GPU asked to serve a request.

    It knows its occupancy, its candidate if it were empty or else the obstacle, the earlier waiter that it is kept for, "" if
    there is none, and the reservation that closes it at the time `now`.
    """

    here: GpuOccupancy
    candidate: Candidate | Obstacle
    kept_for: str = ""
    reserved: Reservation | None = None
    now: float = 0.0

    def best_option(self, destroy_foreign: bool, *, thrifty: bool) -> tuple[Preference, Option] | None:
        """The best way to serve the request on this GPU now, with its preference; None if there is none."""
        if isinstance(self.candidate, Obstacle) or self.here.changing or self.kept_for or self.reserved is not None:
            return None
        return best_option(self.here, self.candidate, destroy_foreign, thrifty=thrifty)

    def answer(self, destroy_foreign: bool) -> GpuFit:
        """Whether the GPU could serve the request now, or else the obstacle."""
        gpu = self.here.gpu
        # The driver may lose sight of a GPU that is being reset.
        if self.here.changing and (gpu.lost or isinstance(self.candidate, Candidate)):
            return GpuFit(gpu, obstacle(gpu, Reason.LAYOUT_CHANGING, "a declared layout is being applied to it"))
        if isinstance(self.candidate, Obstacle):
            return GpuFit(gpu, self.candidate)
        if (shut := _closed(self.here)) is not None:
            return GpuFit(gpu, shut)
        if self.reserved is not None:
            return GpuFit(gpu, obstacle(gpu, Reason.RESERVED, why_closed(self.reserved, self.now)))
        if self.kept_for:
            return GpuFit(
                gpu, obstacle(gpu, Reason.QUEUED_BEHIND, f"kept for {self.kept_for}, which is ahead in the queue")
            )
        found = _options(self.here, self.candidate, destroy_foreign)
        return GpuFit(gpu, found if isinstance(found, Obstacle) else None)


class GpuFit(NamedTuple):
    """One GPU's answer to the request: `obstacle` is None if the GPU could serve it, or one of its shares, now.

    `alike` counts further GPUs with the same answer.
    """

    gpu: GpuState
    obstacle: Obstacle | None
    alike: int = 0

    @property
    def text(self) -> str:
        """One line for people."""
        return ("can serve it now" if self.obstacle is None else self.obstacle.text) + more_alike(self.alike)


class GpuFitList(NamedTuple):
    """One answer for each GPU or, on a large machine, for each group with similar answers; `unnamed` counts omitted GPUs."""

    named: tuple[GpuFit, ...]
    unnamed: int = 0

    @property
    def ready(self) -> int:
        """How many GPUs could serve the request, or one of its shares, now."""
        return sum(1 + each.alike for each in self.named if each.obstacle is None)

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """The obstacles of the GPUs that have one."""
        return tuple(
            each.obstacle if not each.alike else each.obstacle._replace(alike=each.alike)
            for each in self.named
            if each.obstacle is not None
        )


def asked_gpus(view: NodeView, request: Request, reserved: Reserved) -> tuple[_AskedGpu, ...]:
    """Put the request to every GPU of the view, in index order."""
    asked = tuple(
        _AskedGpu(here, found, reserved.get(here.gpu.uuid, ""))
        for here, found in zip(tenancies(view), candidates_within_quota(view, request), strict=True)
    )
    if not view.reservations:
        return asked
    until = free_at(request, view.time)
    return tuple(each._replace(reserved=closing(view, each.here.gpu.uuid, until), now=view.time) for each in asked)


def best_option(
    here: GpuOccupancy, answer: Candidate, destroy_foreign: bool, *, thrifty: bool
) -> tuple[Preference, Option] | None:
    """The cheapest way to serve the candidate on that GPU, with its preference; None if there is none.

    Strongest walls first, then the cheapest change, fewest instances destroyed, least memory granted, for parts the least room
    left over, the lowest start. Slices smaller than their GPU prefer an idle one that a layout or another tool made, then the
    fewest of these destroyed, the least memory, and the cheapest place. A `thrifty` machine first prefers what takes the least
    from future requests.
    """
    found = (_all_ways if thrifty else _ways)(here, answer, destroy_foreign)
    if isinstance(found, Obstacle) or not found:
        return None
    geometry = geometry_of(here.gpu.memory_slices, here.gpu.profiles)
    lasting = {each.placement.mask for each in here.lasting}

    def preference(option: Option) -> Preference:
        taken = _toll(here, option, answer.part) * (_WEAKEST + 1) if thrifty else 0
        mode = option.change is OptionKind.MODE
        if isinstance(option.grant, FractionalShare):
            strength = taken + _STRENGTHS[option.grant.sharing]
            # A cuttable GPU is the last choice for parts, so that it can still be cut for slices.
            last = option.change is not OptionKind.NONE and option.grant.slot is None and option.gpu.mig_capable
            left = option.left + last * _MORE_THAN_ANY_GPU
            return (strength, mode, option.change, option.destroys, option.memory, left)
        slot = option.grant.slot
        destroys = option.destroys
        if slot is None or slot.placement.size == here.gpu.memory_slices:
            return (taken, mode, option.change, destroys, option.memory, 0.0)
        as_found = option.change <= OptionKind.FILL and not option.replaceable
        recut = destroys + (option.change is not OptionKind.NONE)
        cost = place_cost(geometry, lasting, slot.placement.mask, recut)
        effort = OptionKind.NONE if as_found else OptionKind.CREATE
        return (taken, mode, effort, 0 if option.replaceable else destroys, option.memory, cost)

    def start(option: Option) -> int:
        return 0 if option.grant.slot is None else option.grant.slot.placement.start

    ranked = [(preference(option), start(option), option) for option in found]
    best = min(ranked, key=lambda each: each[:2])
    return best[0], best[2]


def answers(asked: Sequence[_AskedGpu], destroy_foreign: bool) -> GpuFitList:
    """The GPUs' answers, in index order."""
    every = [each.answer(destroy_foreign) for each in asked]
    if len(every) <= NAMED_AT_MOST:
        return GpuFitList(tuple(every))
    groups: dict[CommonReason | None, list[int]] = {}
    for place, each in enumerate(every):
        groups.setdefault(None if each.obstacle is None else each.obstacle.likeness, []).append(place)
    # GPUs that can serve the request are always named.
    by_place = sorted(groups.items(), key=lambda group: (group[0] is not None, group[1][0]))
    named = sorted((places[0], len(places)) for _, places in by_place[:NAMED_AT_MOST])
    unnamed = sum(len(places) for _, places in by_place[NAMED_AT_MOST:])
    return GpuFitList(tuple(every[place]._replace(alike=count - 1) for place, count in named), unnamed)


def _withheld_from(tenancy: GpuOccupancy, candidate: Candidate) -> GpuOccupancy:
    """The tenancy with only the places withheld from the candidate."""
    if not tenancy.withheld:
        return tenancy
    return tenancy._replace(withheld=tuple(each for each in tenancy.withheld if _applies(each, candidate)))


def _permitted(tenancy: GpuOccupancy, found: tuple[Option, ...] | Obstacle) -> tuple[Option, ...] | Obstacle:
    """The options that touch nothing withheld."""
    if not tenancy.withheld or isinstance(found, Obstacle):
        return found
    return tuple(each for each in found if not any(out_of_reach(each.grant, kept.place) for kept in tenancy.withheld))


def _withholding(tenancy: GpuOccupancy) -> Obstacle:
    """What the GPU withholds, and why: errors first."""
    first = sorted(tenancy.withheld, key=lambda each: not each.faulty)
    return obstacle(tenancy.gpu, Reason.WITHHELD, "; ".join(dict.fromkeys(each.why for each in first)))


def _closed(tenancy: GpuOccupancy) -> Obstacle | None:
    """The obstacle if the whole GPU is withheld from all requests, which outlasts its holders; None if it is not."""
    whole = tuple(each for each in tenancy.withheld if each.place.slot is None and not each.for_large)
    return _withholding(tenancy._replace(withheld=whole)) if whole and not tenancy.gpu.lost else None


def _applies(withheld: WithheldDevice, candidate: Candidate) -> bool:
    if not withheld.for_large or not candidate.named:
        return True
    wanted = None if candidate.profile is None else candidate.profile.name
    kept = withheld.place.slot
    return size_rank(wanted) < size_rank(None if kept is None else kept.profile)


def _options(tenancy: GpuOccupancy, candidate: Candidate, destroy_foreign: bool) -> tuple[Option, ...] | Obstacle:
    """The ways to serve the candidate on that GPU now, or the most lasting obstacle."""
    if (shut := _closed(tenancy)) is not None:
        return shut
    found = _ways(tenancy, candidate, destroy_foreign)
    if found and not isinstance(found, Obstacle):
        return found
    if (here := _withheld_from(tenancy, candidate)).withheld:
        free = _ways(tenancy._replace(withheld=()), candidate, destroy_foreign)
        if free and not isinstance(free, Obstacle):
            return _withholding(here)
    if isinstance(found, Obstacle) or candidate.profile is None:
        return found
    return slice_obstacle(tenancy, candidate.profile)


def _ways(tenancy: GpuOccupancy, candidate: Candidate, destroy_foreign: bool) -> tuple[Option, ...] | Obstacle:
    """As `_options`, but empty if a slice finds no room: the reason takes longer to find."""
    here, wish = _withheld_from(tenancy, candidate), candidate.part
    if wish is None:
        return _permitted(here, ways_alone(here, candidate, destroy_foreign))
    alone = _permitted(here, ways_alone(here, candidate, destroy_foreign)) if candidate.alone else ()
    if not isinstance(alone, Obstacle) and alone:
        return alone
    parts = _permitted(here, part_options(here, wish, destroy_foreign))
    # On a shared GPU the reason for no more parts matters; on others, the lack of exclusive room.
    return alone if isinstance(parts, Obstacle) and candidate.alone and None not in tenancy.shared else parts


def _all_ways(tenancy: GpuOccupancy, candidate: Candidate, destroy_foreign: bool) -> tuple[Option, ...] | Obstacle:
    """As `_ways`, but both exclusive devices and parts."""
    if candidate.part is None or not candidate.alone:
        return _ways(tenancy, candidate, destroy_foreign)
    here = _withheld_from(tenancy, candidate)
    found = (ways_alone(here, candidate, destroy_foreign), part_options(here, candidate.part, destroy_foreign))
    every = tuple(option for each in found if not isinstance(each, Obstacle) for option in each)
    return _permitted(here, every)


class _PackingCost(IntEnum):
    """What an option takes from future requests, least first. A GPU is in use if no one could have it whole now.

    FITTING: a slice on a GPU in use, more than half of it needed. JOINED: one more part of a shared device. BESIDE: the first
    part of a slice, on a GPU in use. ROOMY: a slice on a GPU in use, at least half of it unneeded. WHOLE: a whole GPU, more than
    half of it needed. OPENED: the first part of an uncut GPU. CUT: anything on a cut but untouched GPU. SPREAD: all else, such as
    cutting one more GPU.
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
    """Why the machine saves its room, in words that follow "because"; "" if it has room to spare.

    It has room to spare while all holders have slices and half of its GPUs would stay untouched if the request took one more. It
    also does if it cannot share devices, or if the request accepts no part.
    """
    if not isinstance(request.demand, GpuMemory | GpuShare) or not accepted(request):
        return ""
    if not means.offered:
        return ""
    if any(here.whole for here in gpus):
        return "some GPUs are held whole or in parts"
    untouched = sum(
        here.untouched and not here.changing and not here.withheld and gpu_blocked(here) is None for here in gpus
    )
    if 2 * (untouched - gpus_needed(request)) < len(gpus):
        return "fewer than half of the GPUs would stay untouched"
    return ""


def _toll(here: GpuOccupancy, option: Option, wish: ShareOptions | None) -> _PackingCost:
    """What the option takes from future requests; `wish` is the part that would serve the request, if any."""
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
