"""A view that is kept up to date: what was sorted out about a GPU stands until that GPU changes.

A decision on it costs the same however many GPUs and allocations there are. Whoever decides once builds it from a NodeView;
whoever decides often, a simulation say, tells it what changed. It is one object that changes, so it belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeVar, cast

from tranche.core.allocation import Allocation, Grant, NodeView, Withheld
from tranche.core.errors import AllocationUnknown, GpuNotFound
from tranche.core.gpu_use import GpuUse
from tranche.core.request import Request
from tranche.core.sharing import SharingMeans
from tranche.core.state import GpuState, InstanceKey, NodeState
from tranche.planning.candidates import Candidate, candidate, check_possible, gpus_needed
from tranche.planning.effect import apply
from tranche.planning.gpu_rules import GpuRules
from tranche.planning.obstacle import Obstacle
from tranche.planning.plan import Plan
from tranche.planning.ranking import Answer, Move, Ranking
from tranche.planning.situation import GpuKind, Situation, kind_of, situation_key, situation_of
from tranche.planning.tenancy import Tenancy, tenancy_of

# How many moves are kept for rankings that nobody asks, before those are dropped.
_MOVES_KEPT = 10_000
_REQUESTS_KEPT = 4_096
_REMEMBERED = 4_096

_T = TypeVar("_T")


class IndexedView:
    """The GPUs, the allocations and what is on each GPU. A GPU's place is its number in index order, from 0."""

    def __init__(self, view: NodeView) -> None:
        self._view: NodeView | None = view
        self._node = view.node
        self._gpus = list(view.node.gpus)
        self._places = {gpu.uuid: place for place, gpu in enumerate(self._gpus)}
        self._allocations = {each.id: each for each in view.allocations}
        self._held: list[list[tuple[Allocation, Grant]]] = [[] for _ in self._gpus]
        for allocation in view.allocations:
            self._hold(allocation)
        self._owned = set(view.owned)
        self._changing = set(view.changing)
        self._uses = dict(view.uses)
        self._withheld: dict[str, tuple[Withheld, ...]] = {}
        for each in view.withheld:
            uuid = each.place.gpu_uuid
            self._withheld[uuid] = (*self._withheld.get(uuid, ()), each)
        self._tenancies: list[Tenancy] = []
        self._situations: list[Situation] = []
        self._known: dict[tuple[object, ...], Situation] = {}
        for gpu, held in zip(self._gpus, self._held, strict=True):
            here = tenancy_of(gpu, held, self._owned, self._withheld.get(gpu.uuid, ()))
            self._tenancies.append(here)
            self._situations.append(self._situation(here, self._situations[-1].kind if self._situations else None))
        self._untouched = sum(each.untouched for each in self._situations)
        self._undivided = sum(each.undivided for each in self._situations)
        self._stale: set[int] = set()
        self._moves: list[Move] = []
        self._rankings: dict[object, Ranking] = {}
        self._remembered: dict[object, tuple[Tenancy, object]] = {}
        self._kinds: dict[GpuKind, tuple[int, int]] | None = None
        self._candidates: dict[Request, dict[GpuKind, Candidate | Obstacle]] = {}

    def __len__(self) -> int:
        return len(self._gpus)

    @property
    def view(self) -> NodeView:
        """The same as a plain view; it takes a pass over all GPUs after a change."""
        if self._view is None:
            node = replace(self._node, gpus=tuple(self._gpus))
            allocations = tuple(self._allocations.values())
            self._view = self._viewed(node, allocations, frozenset(self._owned), frozenset(self._changing))
        return self._view

    @property
    def kinds(self) -> Mapping[GpuKind, tuple[int, int]]:
        """Each kind of GPU that is there, in index order, with the place of its first GPU and how many there are."""
        self._sort_stale()
        if self._kinds is None:
            self._candidates.clear()
            first: dict[GpuKind, int] = {}
            numbers: dict[GpuKind, int] = {}
            for place, situation in enumerate(self._situations):
                first.setdefault(situation.kind, place)
                numbers[situation.kind] = numbers.get(situation.kind, 0) + 1
            self._kinds = {kind: (place, numbers[kind]) for kind, place in first.items()}
        return self._kinds

    def candidates(self, request: Request) -> Mapping[GpuKind, Candidate | Obstacle]:
        """What of each kind, were the GPU empty, is the smallest that serves the request; or what is in the way.

        An obstacle names the first GPU of the kind.
        """
        kinds = self.kinds
        known = self._candidates.get(request)
        if known is None:
            if len(self._candidates) >= _REQUESTS_KEPT:
                self._candidates.clear()
            known = {
                kind: candidate(request, self._gpus[place], self._rules(kind)) for kind, (place, _) in kinds.items()
            }
            self._candidates[request] = known
        return known

    def check_possible(self, request: Request) -> None:
        """Raise what says why no state of these GPUs could ever serve the request; as in planning.candidates."""
        found = self.candidates(request)
        if gpus_needed(request) > 1 or not any(isinstance(each, Candidate) for each in found.values()):
            kinds = self.kinds.items()
            check_possible(request, [(self._gpus[place], self._rules(kind), number) for kind, (place, number) in kinds])

    def last_of_each_kind(self) -> tuple[GpuState, ...]:
        """Of each kind the last GPU that the driver has not lost, in index order."""
        found: dict[GpuKind, GpuState] = {}
        for gpu, situation in zip(reversed(self._gpus), reversed(self._situations), strict=True):
            if len(found) == len(self.kinds):
                break
            if not gpu.lost:
                found.setdefault(situation.kind, gpu)
        return tuple(reversed(found.values()))

    def part(self, places: Collection[int]) -> NodeView:
        """A view of the GPUs at those places alone; of all of them, when there are no others."""
        if len(places) == len(self):
            return self.view
        gpus = tuple(self._gpus[place] for place in sorted(places))
        allocations = {each.id: each for place in sorted(places) for each, _ in self._held[place]}
        owned = {key for gpu in gpus for each in gpu.instances if (key := gpu.key(each)) in self._owned}
        changing = {gpu.uuid for gpu in gpus} & self._changing
        node = replace(self._node, gpus=gpus)
        return self._viewed(node, tuple(allocations.values()), frozenset(owned), frozenset(changing))

    def owns(self, key: InstanceKey) -> bool:
        """Whether Tranche made the instance in that slot."""
        return key in self._owned

    def gpu(self, uuid: str) -> GpuState:
        """The GPU of that UUID; GpuNotFound otherwise."""
        return self._gpus[self._place(uuid)]

    def rules_at(self, place: int) -> GpuRules:
        """Under which rules the GPU at that place is shared."""
        return self._rules(self.kind_at(place))

    def rules(self, uuid: str) -> GpuRules:
        """Under which rules the GPU of that UUID is shared; GpuNotFound when there is none."""
        return self.rules_at(self._place(uuid))

    def allocation(self, allocation_id: str) -> Allocation:
        """The allocation of that id; AllocationUnknown otherwise."""
        try:
            return self._allocations[allocation_id]
        except KeyError:
            raise AllocationUnknown(f"there is no allocation {allocation_id}") from None

    def at(self, place: int) -> tuple[Tenancy, bool]:
        """What is on the GPU at that place, and whether a layout is changing it."""
        self._sort_stale()
        return self._tenancies[place], self._gpus[place].uuid in self._changing

    def kind_at(self, place: int) -> GpuKind:
        """The kind of the GPU at that place."""
        self._sort_stale()
        return self._situations[place].kind

    @property
    def means(self) -> SharingMeans:
        """What devices can be shared by here."""
        return self._node.sharing

    @property
    def untouched(self) -> int:
        """On how many GPUs nothing is, so that they can be given away whole or cut."""
        self._sort_stale()
        return self._untouched

    @property
    def undivided(self) -> int:
        """How many GPUs are held as they are, uncut, by one or by several."""
        self._sort_stale()
        return self._undivided

    def ranking(self, kind: GpuKind, question: object, answer: Callable[[Situation], Answer]) -> Ranking:
        """The GPUs of that kind by their answers to a question; equal questions must have equal answers."""
        self._sort_stale()
        key = (kind, question)
        ranking = self._rankings.get(key)
        if ranking is None:
            ranking = self._rankings[key] = Ranking(kind, answer, self._situations)
            ranking.seen = len(self._moves)
        elif ranking.seen < len(self._moves):
            ranking.catch_up(self._moves)
        return ranking

    def remembered(self, place: int, question: object, work_out: Callable[[], _T]) -> _T:
        """What was worked out for a question from what is on that GPU; worked out again when that has changed."""
        key, here = (place, question), self._tenancies[place]
        known = self._remembered.get(key)
        if known is not None and known[0] is here:
            return cast(_T, known[1])
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        answer = work_out()
        self._remembered[key] = (here, answer)
        return answer

    def observe(self, gpu: GpuState) -> None:
        """Take in how one of the GPUs looks now; GpuNotFound when the view has none of its UUID."""
        place = self._place(gpu.uuid)
        self._gpus[place] = gpu
        self._touch(place)

    def promise(self, allocation: Allocation) -> None:
        """Take in an allocation that is new or has changed."""
        if allocation.id in self._allocations:
            self.release(allocation.id)
        self._view = None
        self._allocations[allocation.id] = allocation
        for place in self._hold(allocation):
            self._touch(place)

    def release(self, allocation_id: str) -> Allocation:
        """Forget an allocation, whose instances stay; AllocationUnknown when there is none of that id."""
        allocation = self.allocation(allocation_id)
        del self._allocations[allocation_id]
        for grant in allocation.grants:
            place = self._places.get(grant.gpu_uuid)
            if place is not None:
                self._held[place] = [each for each in self._held[place] if each[0].id != allocation_id]
                self._touch(place)
        self._view = None
        return allocation

    def carry_out(self, plan: Plan) -> None:
        """Take in that a plan was carried out; GpuNotFound when it names a GPU that the view does not have."""
        before = self.part([self._place(uuid) for uuid in plan.gpu_uuids])
        after = apply(plan, before)
        for gpu in after.node:
            self.observe(gpu)
        self.disown(before.owned - after.owned)
        self.own(after.owned - before.owned)

    def own(self, keys: Collection[InstanceKey]) -> None:
        """Take in that Tranche made the instances in those slots."""
        self._owned.update(keys)
        self._touch_slots(keys)

    def disown(self, keys: Collection[InstanceKey]) -> None:
        """Take in that the instances in those slots are gone, or are not Tranche's."""
        self._owned.difference_update(keys)
        self._touch_slots(keys)

    def begin_change(self, gpu_uuid: str) -> None:
        """Take in that a layout is changing the GPU; GpuNotFound when the view has none of that UUID."""
        self._changing.add(gpu_uuid)
        self._touch(self._place(gpu_uuid))

    def end_change(self, gpu_uuid: str) -> None:
        """Take in that no layout is changing the GPU any more."""
        self._changing.discard(gpu_uuid)
        self._touch(self._place(gpu_uuid))

    def _viewed(
        self,
        node: NodeState,
        allocations: tuple[Allocation, ...],
        owned: frozenset[InstanceKey],
        changing: frozenset[str],
    ) -> NodeView:
        withheld = tuple(each for gpu in node for each in self._withheld.get(gpu.uuid, ()))
        return NodeView(node, allocations, owned, changing, self._uses, withheld)

    def _place(self, uuid: str) -> int:
        try:
            return self._places[uuid]
        except KeyError:
            raise GpuNotFound(f"no GPU {uuid} on this machine", hint="list the GPUs with: tranche gpus") from None

    def _hold(self, allocation: Allocation) -> set[int]:
        """Note the allocation's grants where they lie, and say where; a grant on a GPU that is not there lies nowhere."""
        places = set()
        for grant in allocation.grants:
            place = self._places.get(grant.gpu_uuid)
            if place is not None:
                self._held[place].append((allocation, grant))
                places.add(place)
        return places

    def _touch(self, place: int) -> None:
        self._stale.add(place)
        self._view = None

    def _touch_slots(self, keys: Collection[InstanceKey]) -> None:
        self._view = None
        for key in keys:
            if key.gpu_uuid in self._places:
                self._stale.add(self._places[key.gpu_uuid])

    def _sort_stale(self) -> None:
        """Sort out anew what is on the GPUs that changed."""
        if not self._stale:
            return
        for place in self._stale:
            gpu = self._gpus[place]
            here = tenancy_of(gpu, self._held[place], self._owned, self._withheld.get(gpu.uuid, ()))
            before = self._situations[place]
            after = self._situation(here, before.kind)
            self._tenancies[place] = here
            if after is not before:
                self._situations[place] = after
                self._untouched += after.untouched - before.untouched
                self._undivided += after.undivided - before.undivided
                self._moves.append((place, before, after))
                if after.kind is not before.kind:
                    self._kinds = None
        self._stale.clear()
        if len(self._moves) > _MOVES_KEPT:
            self._forget_moves()

    def _forget_moves(self) -> None:
        """Drop the rankings that were not asked since the last time, and bring the others up to date."""
        self._rankings = {key: ranking for key, ranking in self._rankings.items() if ranking.seen}
        for ranking in self._rankings.values():
            ranking.catch_up(self._moves)
            ranking.seen = 0
        self._moves.clear()

    def _rules(self, kind: GpuKind) -> GpuRules:
        return GpuRules(kind.use, self._node.sharing)

    def _situation(self, here: Tenancy, guess: GpuKind | None) -> Situation:
        kind = kind_of(here.gpu, self._uses.get(here.gpu.uuid, GpuUse.AUTO), guess)
        changing = here.gpu.uuid in self._changing
        key = situation_key(kind, here, changing)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = situation_of(kind, here, changing)
        return known


def indexed(view: NodeView | IndexedView) -> IndexedView:
    """The view with its index."""
    return view if isinstance(view, IndexedView) else IndexedView(view)
