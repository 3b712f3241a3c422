"""What each GPU answers to a request: how it would serve it best, or what is in the way. A long list is cut short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest

from tranche.core.allocation import Part
from tranche.core.request import Request
from tranche.core.sharing import Sharing
from tranche.core.state import GpuState
from tranche.planning.candidates import Candidate, candidate
from tranche.planning.choices import all_ways, options, ways
from tranche.planning.indexed_view import IndexedView
from tranche.planning.obstacle import Likeness, Obstacle, Reason, more_alike, obstacle
from tranche.planning.options import Effort, Freedom, Option, same_option
from tranche.planning.policy import Policy
from tranche.planning.ranking import Answer, Preference, Ranking
from tranche.planning.situation import GpuKind, Situation
from tranche.planning.tables import geometry_of
from tranche.planning.tenancy import Tenancy
from tranche.planning.thrift import toll
from tranche.planning.withholding import closed

# Machines with more GPUs than this name one GPU for all that answer alike, and so many of these at most.
NAMED_AT_MOST = 16

# What is for one alone comes first, and then the mechanisms in the order of their strength.
_STRENGTHS = {sharing: number for number, sharing in enumerate(Sharing, start=1)}
_WEAKEST = len(_STRENGTHS)

# In bytes.
_MORE_THAN_ANY_GPU = 1 << 60

# The kinds of GPU that may not be used, with the waiter that each is kept for.
Reserved = Mapping[GpuKind, str]


@dataclass(frozen=True, slots=True)
class Terms:
    """How a request is to be served: what a plan may do, and how to choose among equally cheap places.

    `thrifty` says that the machine is careful with its room: what takes less from those to come goes before what is stronger.
    """

    freedom: Freedom
    policy: Policy
    thrifty: bool = False


@dataclass(frozen=True, slots=True)
class GpuAnswer:
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
class Answers:
    """One answer for each GPU or, on a large machine, for those that answer alike; `unnamed` counts GPUs that none is for."""

    named: tuple[GpuAnswer, ...]
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


def ranking_of(index: IndexedView, kind: GpuKind, answer: Candidate, terms: Terms) -> Ranking:
    """The GPUs of that kind, which would serve the request by that candidate were they empty."""
    name = None if answer.profile is None else answer.profile.name
    # Where every GPU is named, nobody asks which obstacles are alike.
    told_apart = len(index) > NAMED_AT_MOST
    return index.ranking(
        kind,
        (name, answer.whole, answer.part, answer.named, terms),
        partial(_answer_in, candidate=answer, terms=terms, told_apart=told_apart),
    )


def best_option(here: Tenancy, answer: Candidate, terms: Terms) -> tuple[Preference, Option] | None:
    """The cheapest way to serve the candidate on that GPU, with what is to be said for it; None when there is no way.

    Strongest walls first, then the cheapest change, fewest instances destroyed, least memory given, the policy's cost or of parts
    the least room left over, the lowest start. Before all that, on a machine that is careful with its room, what takes the least
    from those to come.
    """
    found = (all_ways if terms.thrifty else ways)(here, answer, terms.freedom)
    if isinstance(found, Obstacle) or not found:
        return None
    geometry = geometry_of(here.gpu.memory_slices, here.gpu.profiles)

    def preference(option: Option) -> Preference:
        taken = toll(here, option, answer.part) * (_WEAKEST + 1) if terms.thrifty else 0
        if isinstance(option.grant, Part):
            strength = taken + _STRENGTHS[option.grant.sharing]
            # A GPU that can be cut is opened for parts after all others, so that it can be cut for somebody.
            last = option.change is not Effort.NONE and option.grant.slot is None and option.gpu.mig_capable
            return (strength, option.change, option.destroys, option.memory, option.left + last * _MORE_THAN_ANY_GPU)
        slot = option.grant.slot
        spot = None if slot is None else slot.placement
        cost = 0.0 if spot is None else terms.policy.cost(geometry, option.mask, option.mask | spot.mask)
        return (taken, option.change, option.destroys, option.memory, cost)

    def start(option: Option) -> int:
        return 0 if option.grant.slot is None else option.grant.slot.placement.start

    ranked = [(preference(option), start(option), option) for option in found]
    best = min(ranked, key=lambda each: each[:2])
    return best[0], best[2]


def option_at(index: IndexedView, place: int, answer: Candidate, ranking: Ranking, terms: Terms) -> Option:
    """How the GPU at that place, which can, serves the candidate best. The ranking is the one of candidate and terms."""
    here, _ = index.at(place)
    known = ranking.option(place)
    if known.destroys <= 1:
        return same_option(known, here.gpu)
    found = best_option(here, answer, terms)
    assert found is not None
    return found[1]


def answers(index: IndexedView, request: Request, terms: Terms, reserved: Reserved) -> Answers:
    """What the GPUs answer, in index order."""
    if len(index) <= NAMED_AT_MOST:
        return Answers(tuple(_answer_at(index, place, request, terms, reserved) for place in range(len(index))))
    groups: dict[Likeness | None, tuple[int, int]] = {}
    for kind, answer in index.candidates(request).items():
        for likeness, place, count in _groups(index, kind, answer, terms, reserved):
            first, before = groups.get(likeness, (place, 0))
            groups[likeness] = (min(first, place), before + count)
    # Those that can serve the request are named in any case.
    by_place = sorted(groups.items(), key=lambda group: (group[0] is not None, group[1]))
    named = [
        replace(_answer_at(index, place, request, terms, reserved), alike=count - 1)
        for place, count in sorted(group for _, group in by_place[:NAMED_AT_MOST])
    ]
    return Answers(tuple(named), sum(count for _, (_, count) in by_place[NAMED_AT_MOST:]))


def some_of_each(
    index: IndexedView, request: Request, terms: Terms, reserved: Reserved, number: int
) -> tuple[int, ...]:
    """The places of so many GPUs, of all that answer unlike ones, in index order: those to look at where all are too many."""
    groups: list[list[int]] = []
    for kind, answer in index.candidates(request).items():
        if isinstance(answer, Obstacle):
            groups.append([index.kinds[kind][0]])
        elif kind in reserved:
            groups += index.ranking(kind, "reserved", _reserved).lowest_of_groups(number)
        else:
            groups += ranking_of(index, kind, answer, terms).lowest_of_groups(number)
    in_turn = (place for nth in zip_longest(*groups) for place in nth if place is not None)
    return tuple(sorted(islice(in_turn, number)))


def _groups(
    index: IndexedView, kind: GpuKind, answer: Candidate | Obstacle, terms: Terms, reserved: Reserved
) -> Sequence[tuple[Likeness | None, int, int]]:
    """The GPUs of that kind by what they answer: its likeness, the lowest place, and how many there are."""
    if isinstance(answer, Obstacle):
        return [(answer.likeness, *index.kinds[kind])]
    if kind in reserved:
        return list(index.ranking(kind, "reserved", _reserved).groups())
    return list(ranking_of(index, kind, answer, terms).groups())


def _answer_at(index: IndexedView, place: int, request: Request, terms: Terms, reserved: Reserved) -> GpuAnswer:
    here, changing = index.at(place)
    gpu = here.gpu
    answer = candidate(request, gpu, index.rules_at(place))
    if changing and gpu.lost:  # the driver may lose sight of a GPU that is being reset
        return GpuAnswer(gpu, _changing(gpu))
    if isinstance(answer, Obstacle):
        return GpuAnswer(gpu, answer)
    if changing:
        return GpuAnswer(gpu, _changing(gpu))
    if (shut := closed(here)) is not None:
        return GpuAnswer(gpu, shut)
    waiter = reserved.get(index.kind_at(place))
    if waiter is not None:
        return GpuAnswer(gpu, _kept_for(gpu, waiter))

    def work_out() -> GpuAnswer:
        found = options(here, answer, terms.freedom)
        return GpuAnswer(gpu, found if isinstance(found, Obstacle) else None)

    # Whoever decides often and in vain asks the same few GPUs again and again.
    return index.remembered(place, (request, terms), work_out)


def _answer_in(situation: Situation, *, candidate: Candidate, terms: Terms, told_apart: bool) -> Answer:
    if situation.changing:
        return Likeness(Reason.LAYOUT_CHANGING)
    best = best_option(situation.example, candidate, terms)
    if best is not None:
        return best
    if not told_apart:
        return Likeness(Reason.NO_ROOM)
    found = options(situation.example, candidate, terms.freedom)
    assert isinstance(found, Obstacle)
    return found.likeness


def _reserved(situation: Situation) -> Answer:
    if situation.changing:
        return Likeness(Reason.LAYOUT_CHANGING)
    shut = closed(situation.example)
    return Likeness(Reason.QUEUED_BEHIND) if shut is None else shut.likeness


def _changing(gpu: GpuState) -> Obstacle:
    return obstacle(gpu, Reason.LAYOUT_CHANGING, "a declared layout is being applied to it")


def _kept_for(gpu: GpuState, waiter: str) -> Obstacle:
    return obstacle(gpu, Reason.QUEUED_BEHIND, f"kept for {waiter}, which asked earlier")
