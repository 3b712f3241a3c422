"""Remedies for a waiting request: each is tried on the view it would lead to before it is named.

Ordered by cost: preempt others; set a time limit; request another slice that fits now; accept weaker isolation; wait; lift a
cordon; destroy foreign idle instances; move or recut; use another GPU model. On a large machine, the search for holders to wait
for covers only a few GPUs; the search for immediate starts covers all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations, islice, zip_longest

from tranche.core.allocation import (
    Allocation,
    FractionalShare,
    NodeView,
    Slice,
    WholeGpu,
    size_of,
)
from tranche.core.board import GpuInstanceProfile, catalogue
from tranche.core.errors import TrancheError
from tranche.core.grid import placements, profiles_exclude
from tranche.core.quantity import format_memory
from tranche.core.request import GpuMemory, Isolation, MigSlice, Request, WholeGpus
from tranche.core.state import GpuState, InstanceKey
from tranche.planning.decide.allocate import Granted, decide
from tranche.planning.decide.answers import NAMED_AT_MOST, Reserved, asked_gpus, why_thrifty
from tranche.planning.decide.candidates import Candidate, candidate, gpus_needed, one_of, plain_profiles
from tranche.planning.decide.foresee import with_granted, without
from tranche.planning.decide.obstacle import Obstacle, Reason
from tranche.planning.decide.quota import candidates_within_quota, held_by_asker
from tranche.planning.decide.reservations import is_for
from tranche.planning.decide.share_options import rules_of
from tranche.planning.occupancy.gpu_occupancy import tenancies, tenancy

_NAMED_AT_MOST = 4
_HOLDERS_LISTED = 256
# Up to this many holders of a device, every set is compared.
_COMPARED_AT_MOST = 8
# The limits of the search, for any request: GPUs, and sets of holders.
_SEARCHED_AT_MOST = 64
_SETS_AT_MOST = 20_000


class RemedyKind(StrEnum):
    """The remedies, cheapest first."""

    PREEMPT = "Preempt"
    TIME_LIMIT = "TimeLimit"
    OTHER_SLICE = "OtherSlice"
    WEAKER_FENCE = "WeakerFence"
    WAIT = "Wait"
    UNCORDON = "Uncordon"
    DESTROY_FOREIGN = "DestroyForeign"
    RECUT = "Recut"
    OTHER_MODEL = "OtherModel"
    STRONGER_FENCE = "StrongerFence"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that would let the request start, or give a startable one stronger isolation.

    `allocation_ids` and `process_ids` would have to end or move.
    """

    kind: RemedyKind
    text: str
    request: Request | None = None
    allocation_ids: tuple[str, ...] = ()
    process_ids: tuple[int, ...] = ()
    instances: tuple[InstanceKey, ...] = ()


@dataclass(frozen=True, slots=True)
class RemedyList:
    """Remedies, cheapest first. `looked_at` is how many GPUs were searched, if not all; else 0."""

    remedies: tuple[Remedy, ...]
    looked_at: int = 0


NO_ADVICE = RemedyList(())


@dataclass(frozen=True, slots=True)
class _Question:
    """A request that does not start now, behind those `ahead`, and its context. `near` is the searched part of the view."""

    view: NodeView
    near: NodeView
    request: Request
    reserved: Reserved
    destroy_foreign: bool
    ahead: str

    def granted(
        self,
        view: NodeView | None = None,
        request: Request | None = None,
        *,
        skip_queue: bool = False,
    ) -> Granted | None:
        """What would be granted with this view, request or order; None for nothing."""
        try:
            decision = decide(
                view or self.view,
                request or self.request,
                adopt_foreign_destroy=self.destroy_foreign,
                reserved={} if skip_queue else self.reserved,
            )
        except TrancheError:
            return None
        return decision if isinstance(decision, Granted) else None

    def candidates(self) -> tuple[Candidate | Obstacle, ...]:
        """Each GPU's candidate for the request, were the GPU empty."""
        return tuple(candidate(self.request, gpu, rules_of(self.view, gpu)) for gpu in self.view.node)


@dataclass(frozen=True, slots=True)
class _Holders:
    """Allocations and processes that occupy a place."""

    allocation_ids: frozenset[str] = frozenset()
    process_ids: frozenset[int] = frozenset()

    @property
    def named(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        return tuple(sorted(self.allocation_ids)), tuple(sorted(self.process_ids))

    @property
    def cost(self) -> tuple[int, tuple[tuple[str, ...], tuple[int, ...]]]:
        return len(self.allocation_ids) + len(self.process_ids), self.named

    def gone_from(self, view: NodeView) -> NodeView:
        return without(view, self.allocation_ids, self.process_ids)

    def __or__(self, other: _Holders) -> _Holders:
        return _Holders(self.allocation_ids | other.allocation_ids, self.process_ids | other.process_ids)


def remedies(view: NodeView, request: Request, destroy_foreign: bool, reserved: Reserved, ahead: str) -> RemedyList:
    """What would help the request, which does not start now, behind the requests `ahead`; empty without a known remedy."""
    question = _question(view, request, destroy_foreign, reserved, ahead)
    places = question.near.node.gpus
    by_user = [*_other_slices(question), *_weaker_isolation(question)]
    if _beyond_quota(question):
        return RemedyList((*by_user, *_own_ends(question)))
    found = [
        *by_user,
        *_waits(question),
        *_uncordons(question),
        *_foreign(question),
        *_recuts(question),
        *_models(question),
    ]
    return RemedyList(tuple(found), len(places) if len(places) < len(view.node.gpus) else 0)


def stronger(view: NodeView, request: Request, destroy_foreign: bool, reserved: Reserved) -> RemedyList:
    """What would give the request, which now gets a part of a shared device, an exclusive device.

    It exists already if the machine saves its room; otherwise some holder must end first.
    """
    if request.compute is not None:
        return NO_ADVICE
    question = _question(view, replace(request, isolation=Isolation.HARD), destroy_foreign, reserved)
    free = question.granted()
    if free is not None:
        why = why_thrifty(request, view.node.sharing, tuple(tenancies(view)))
        text = f"{free.note}, is kept for requests with --isolation hard, because {why}"
        return RemedyList((Remedy(RemedyKind.STRONGER_FENCE, text, question.request),))
    holders = _fewest_holders(question)
    if holders is None:
        return NO_ADVICE
    ended = holders.gone_from(question.near)
    granted = question.granted(ended)
    if granted is None or holders == _Holders():
        return NO_ADVICE
    what = "a whole GPU" if granted.grants[0].slot is None else "a slice"
    names = _names(question.near, holders)
    text = f"get {what} when {_listed(names)} end{'s' if len(names) == 1 else ''}"
    # Only the full set of GPUs shows whether the machine then has room to spare.
    as_asked = question.granted(ended, request) if len(ended.node.gpus) == len(view.node.gpus) else None
    if as_asked is None or any(isinstance(grant, FractionalShare) for grant in as_asked.grants):
        text += ", with --isolation hard"
    return RemedyList((Remedy(RemedyKind.STRONGER_FENCE, text, question.request, *holders.named),))


def _question(
    view: NodeView, request: Request, destroy_foreign: bool, reserved: Reserved, ahead: str = ""
) -> _Question:
    """The question, with the part of the machine to search."""
    number = min(max(NAMED_AT_MOST, gpus_needed(request)), _SEARCHED_AT_MOST)
    near = view
    if len(view.node.gpus) > number:
        gpus = tuple(view.node.gpus[place] for place in _some_of_each(view, request, destroy_foreign, reserved, number))
        near = replace(view, node=replace(view.node, gpus=gpus))
    return _Question(view, near, request, reserved, destroy_foreign, ahead)


def _some_of_each(
    view: NodeView, request: Request, destroy_foreign: bool, reserved: Reserved, number: int
) -> Sequence[int]:
    """The positions of `number` GPUs, spread over all different answers, in index order: those to search on a large machine."""
    groups: dict[object, list[int]] = {}
    for place, each in enumerate(asked_gpus(view, request, reserved)):
        obstacle = each.answer(destroy_foreign).obstacle
        groups.setdefault((each.here.gpu.name, obstacle and obstacle.likeness), []).append(place)
    in_turn = (place for nth in zip_longest(*groups.values()) for place in nth if place is not None)
    return sorted(islice(in_turn, number))


def _other_slices(question: _Question) -> Iterator[Remedy]:
    """The largest smaller slice and the smallest larger one that could start now."""
    if gpus_needed(question.request) > 1:
        return
    asked = [each for each in question.candidates() if isinstance(each, Candidate)]
    sizes = {(each.profile.size, each.profile.slices) for each in asked if each.profile is not None}
    offered = {p.name: p for gpu in question.view.node if not gpu.lost for p in plain_profiles(gpu)}
    by_size = sorted(offered.values(), key=lambda p: (p.size, p.slices, p.memory or 0, p.name))
    wanted = {each.profile.name for each in asked if each.profile is not None}
    other = [p for p in by_size if p.name not in wanted]
    limit = min(sizes) if sizes else None
    smaller = [p for p in other if limit is None or (p.size, p.slices) <= limit]
    larger = [p for p in other if limit is not None and (p.size, p.slices) > limit]
    for group in (reversed(smaller), iter(larger)):
        for profile in group:
            request = replace(question.request, demand=MigSlice(profile.name), compute=None)
            if question.granted(request=request) is not None:
                yield Remedy(RemedyKind.OTHER_SLICE, f"{_sized(profile)} fits now: {request}", request)
                break


def _weaker_isolation(question: _Question) -> Iterator[Remedy]:
    """The strongest unaccepted isolation with which the request could start now."""
    asked = question.request
    levels = [Isolation.SOFT, Isolation.NONE] if asked.isolation is Isolation.HARD else [Isolation.NONE]
    if asked.isolation in (Isolation.NONE, Isolation.ANY):
        return
    for isolation in levels:
        request = replace(asked, isolation=isolation)
        granted = question.granted(request=request)
        if granted is not None:
            yield Remedy(RemedyKind.WEAKER_FENCE, f"accept --isolation {isolation}: {granted.note} fits now", request)
            return


def _waits(question: _Question) -> Iterator[Remedy]:
    ahead = f"wait until earlier requests have started: {question.ahead}"
    if question.reserved and question.granted(skip_queue=True) is not None:
        yield Remedy(RemedyKind.WAIT, ahead)
        return
    holders = _fewest_holders(question)
    if holders is not None:
        yield Remedy(RemedyKind.WAIT, _wait_text(question.near, holders), None, *holders.named)
    elif question.reserved and (alone := _fewest_holders(replace(question, reserved={}))) is not None:
        text = f"{ahead}; without these, {_wait_text(question.near, alone)}"
        yield Remedy(RemedyKind.WAIT, text, None, *alone.named)
    elif found := question.granted(replace(question.view, reservations=())):
        gpus = {each.gpu_uuid for each in found.grants}
        last = max(
            (each for each in question.view.reservations if gpus & {*each.gpu_uuids}), key=lambda each: each.ends
        )
        mine = is_for(last, question.view, question.view.asker) and question.view.time < last.begins
        until = "your reservation begins" if mine else "a reservation is over"
        yield Remedy(RemedyKind.WAIT, f"wait until {until}: {last}")


def _beyond_quota(question: _Question) -> bool:
    """Whether the quota of the user is in the way."""
    answers = candidates_within_quota(question.view, question.request)
    return any(isinstance(each, Obstacle) and each.reason is Reason.QUOTA for each in answers)


def _own_ends(question: _Question) -> Iterator[Remedy]:
    """The fewest of the user's own shares, largest first, after whose end the request could start."""
    view = question.view
    own = sorted(held_by_asker(view), key=lambda each: (-size_of(each.grants, view.node).memory, each.id))
    for count in range(1, len(own) + 1):
        holders = _Holders(frozenset(each.id for each in own[:count]))
        if question.granted(holders.gone_from(view)) is not None:
            yield Remedy(RemedyKind.WAIT, _wait_text(view, holders), None, *holders.named)
            return


def _uncordons(question: _Question) -> Iterator[Remedy]:
    """The fewest cordoned GPUs that would do if their cordons were lifted."""
    view = question.near
    cordoned = {each.place.gpu_uuid for each in view.withheld if each.by_administrator}
    granted = question.granted(_uncordoned(view, cordoned)) if cordoned else None
    if granted is None:
        return
    needed = {each.gpu_uuid for each in granted.grants} & cordoned
    for uuid in sorted(needed):
        if question.granted(_uncordoned(view, needed - {uuid})) is not None:
            needed.discard(uuid)
    gpus = [gpu for gpu in view.node if gpu.uuid in needed]
    if not gpus:
        return
    labels, indices = _listed([gpu.label for gpu in gpus]), " ".join(str(gpu.index) for gpu in gpus)
    why = "the reason for its cordon is" if len(gpus) == 1 else "the reasons for their cordons are"
    yield Remedy(RemedyKind.UNCORDON, f"uncordon {labels} when {why} gone: tranche uncordon {indices}")


def _uncordoned(view: NodeView, uuids: Collection[str]) -> NodeView:
    kept = tuple(each for each in view.withheld if not (each.by_administrator and each.place.gpu_uuid in uuids))
    return replace(view, withheld=kept)


def _foreign(question: _Question) -> Iterator[Remedy]:
    """Destroy foreign idle instances; if neither that nor waiting is enough alone, both together."""
    if question.destroy_foreign:
        return
    allowed = replace(question, destroy_foreign=True)
    holders = _Holders()
    granted = allowed.granted()
    if granted is None and _fewest_holders(question) is None:
        holders = _fewest_holders(allowed) or holders
        granted = allowed.granted(holders.gone_from(question.near))
    if granted is None:
        return
    keys = [key for step in granted.plan.steps if (key := step.destroys) is not None]
    foreign = tuple(key for key in keys if key not in question.view.owned)
    names = ", ".join(f"{k.profile} at {k.placement} of {question.view.node.gpu(k.gpu_uuid).label}" for k in foreign)
    text = f"let Tranche destroy instances that it did not create ({names}): --adopt-foreign=destroy"
    if holders != _Holders():
        text = f"{_wait_text(question.near, holders)}, then {text}"
    yield Remedy(RemedyKind.DESTROY_FOREIGN, text, None, *holders.named, foreign)


def _recuts(question: _Question) -> Iterator[Remedy]:
    holders = _fewest_holders(question)
    if holders is None or holders.process_ids or not holders.allocation_ids:
        return
    moved = [each for each in question.near.allocations if each.id in holders.allocation_ids]
    homes = _new_homes(question, moved)
    if homes is not None:
        text = "move " + ", ".join(f"{each.id} to {home}" for each, home in zip(moved, homes, strict=True))
        yield Remedy(RemedyKind.RECUT, f"{text} (stop and restart each of them)", None, tuple(m.id for m in moved))


def _models(question: _Question) -> Iterator[Remedy]:
    request = question.request
    if request.gpu_model:
        granted = question.granted(request=replace(request, gpu_model=""))
        if granted is not None:
            gpu = question.view.node.gpu(granted.grants[0].gpu_uuid)
            yield Remedy(RemedyKind.OTHER_MODEL, f"omit --gpu-model: {gpu.label} ({gpu.name}) can serve it now")
            return
    if any(isinstance(each, Candidate) or each.reason is Reason.POLICY for each in question.candidates()):
        return
    products = _boards_that_serve(request)
    if products:
        yield Remedy(RemedyKind.OTHER_MODEL, f"another GPU model has it: {', '.join(products)}")


def _fewest_holders(question: _Question) -> _Holders | None:
    """The fewest holders that would have to end for the request to start; None if that cannot help."""
    ways = [found for gpu in question.near.node if (found := _cheapest_on(question, gpu)) is not None]
    ways.sort(key=lambda each: each.cost)
    needed = gpus_needed(question.request)
    sets: list[_Holders] = []
    for chosen in islice(combinations(ways, needed), _SETS_AT_MOST):
        union = _Holders()
        for each in chosen:
            union |= each
        sets.append(union)
    for holders in sorted(sets, key=lambda each: each.cost):
        view = holders.gone_from(question.near)
        if question.granted(view) is not None:
            return holders
    return None


def _cheapest_on(question: _Question, gpu: GpuState) -> _Holders | None:
    """The fewest holders to end so that this GPU serves one share of the request; none if it already can."""
    one = one_of(question.request)
    answer = candidate(one, gpu, rules_of(question.view, gpu))
    if not isinstance(answer, Candidate):
        return None
    alone = _alone(question.near, gpu)
    for holders in sorted(set(_holder_sets(alone, gpu, answer)), key=lambda each: each.cost):
        if question.granted(holders.gone_from(alone), one) is not None:
            return holders
    return None


def _alone(view: NodeView, gpu: GpuState) -> NodeView:
    """One of the view's GPUs, with its promises."""
    here = tuple(each for each in view.allocations if any(grant.gpu_uuid == gpu.uuid for grant in each.grants))
    return replace(view, node=replace(view.node, gpus=(gpu,)), allocations=here)


def _holder_sets(view: NodeView, gpu: GpuState, answer: Candidate) -> Iterator[_Holders]:
    here = tenancy(view, gpu)
    yield _Holders()
    yield _Holders(frozenset(each.id for each in here.allocations), _unheld_processes(view, gpu))
    if answer.part is not None:
        for slot in here.shared:
            yield from map(_Holders, _sharers(here.holders_of(slot)))
    if answer.profile is None:
        return
    for spot in placements(answer.profile):
        ids: set[str] = set()
        pids: set[int] = set()
        for key, holders in here.promised.items():
            if key.placement.overlaps(spot) or profiles_exclude(key.profile, answer.profile.name):
                ids.update(each.id for each in holders)
        for instance in here.in_use:
            if instance.placement.overlaps(spot) or profiles_exclude(instance.profile, answer.profile.name):
                pids.update(p.pid for p in instance.processes)
        yield _Holders(frozenset(ids), frozenset(pids))


def _sharers(holders: Sequence[Allocation]) -> Iterator[frozenset[str]]:
    """Sets of sharers that could make room for one more part by ending: all sets of a few, else the largest parts."""
    if len(holders) <= _COMPARED_AT_MOST:
        for size in range(1, len(holders)):
            for some in combinations(holders, size):
                yield frozenset(each.id for each in some)
        return
    largest_first = sorted(holders, key=lambda each: (-sum(_part_memory(each)), each.id))
    for size in range(1, len(holders)):
        yield frozenset(each.id for each in largest_first[:size])


def _part_memory(allocation: Allocation) -> Iterator[int]:
    return (grant.memory for grant in allocation.grants if isinstance(grant, FractionalShare))


def _unheld_processes(view: NodeView, gpu: GpuState) -> frozenset[int]:
    held = without(view, [each.id for each in view.allocations])
    return frozenset(p.pid for p in held.node.gpu(gpu.uuid).all_processes)


def _wait_text(view: NodeView, holders: _Holders) -> str:
    names = _names(view, holders)
    if len(names) > _HOLDERS_LISTED:
        shown = ", ".join(names[:_HOLDERS_LISTED])
        return f"wait for {len(names)} holders to end: {shown} and {len(names) - _HOLDERS_LISTED} more"
    if len(names) > _NAMED_AT_MOST:
        return f"wait for {len(names)} holders to end: {', '.join(names)}"
    return f"wait for {_listed(names)} to end"


def _names(view: NodeView, holders: _Holders) -> list[str]:
    processes = {p.pid: str(p) for gpu in view.node for p in gpu.all_processes}
    return [*sorted(holders.allocation_ids), *(processes[pid] for pid in sorted(holders.process_ids))]


def _listed(names: Sequence[str]) -> str:
    return (" and " if len(names) == 2 else ", ").join(names)


def _new_homes(question: _Question, moved: Sequence[Allocation]) -> list[str] | None:
    """Where each allocation could go once the request has its place; None if some have nowhere to go."""
    view = without(question.near, [each.id for each in moved])
    granted = question.granted(view)
    if granted is None:
        return None
    view = with_granted(view, question.request, granted)
    homes: list[str] = []
    for allocation in moved:
        places: list[str] = []
        for grant in allocation.grants:
            if not isinstance(grant, WholeGpu | Slice):
                return None  # it shares its device with others, and no way to move it is known
            demand = WholeGpus(1) if grant.slot is None else MigSlice(grant.slot.profile)
            again = Request(demand, allocation.request.isolation, allocation.request.gpu_model)
            place = question.granted(view, again)
            if place is None:
                return None
            view = with_granted(view, again, place)
            places.append(question.view.node.gpu(place.grants[0].gpu_uuid).label)
        homes.append(" and ".join(places))
    return homes


def _boards_that_serve(request: Request) -> list[str]:
    """Up to three catalogue products that offer the profile, or the memory in one GPU."""
    demand = request.demand
    if isinstance(demand, MigSlice):
        boards = [b for b in catalogue() if b.profile(demand.profile) is not None]
    elif isinstance(demand, GpuMemory):
        boards = [b for b in catalogue() if b.memory is not None and b.memory >= demand.amount]
        boards.sort(key=lambda b: b.memory or 0)
    else:
        return []
    return [board.products[0] for board in boards[:3]]


def _sized(profile: GpuInstanceProfile) -> str:
    return str(profile.name) if profile.memory is None else f"{profile.name} ({format_memory(profile.memory)})"
