"""The decision without an index: every GPU is asked, and every allocation is looked at for every GPU.

It is what `decide` must agree with in the tests, and its baseline in the benchmark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tranche.core.allocation import NodeView, Part
from tranche.core.errors import TrancheError
from tranche.core.request import GpuMemory, GpuShare, Isolation, Request
from tranche.core.sharing import Sharing
from tranche.core.state import GpuState
from tranche.planning.allocate import Decision, Waiting, granted
from tranche.planning.candidates import Candidate, candidate, check_possible, gpus_needed
from tranche.planning.choices import all_ways, options
from tranche.planning.gpu_rules import GpuRules
from tranche.planning.obstacle import Obstacle, Reason, obstacle
from tranche.planning.options import Effort, Freedom, Option, gpu_blocked
from tranche.planning.part_wish import PartWish
from tranche.planning.policy import DEFAULT, Policy
from tranche.planning.queue import WaitingRequest
from tranche.planning.tables import geometry_of
from tranche.planning.tenancy import Tenancy, tenancy
from tranche.planning.thrift import toll
from tranche.planning.withholding import closed


def decide_by_scan(
    view: NodeView,
    request: Request,
    *,
    policy: Policy = DEFAULT,
    adopt_foreign_destroy: bool = False,
    reserved: Mapping[str, str] | None = None,
) -> Decision:
    """As `decide`, with an obstacle for each GPU however many there are. `reserved` maps UUIDs to waiters."""
    check_possible(request, [(gpu, _rules(view, gpu), 1) for gpu in view.node])
    freedom, thrifty = Freedom(adopt_foreign_destroy), _thrifty(view, request)
    best: list[tuple[tuple[float, ...], Option]] = []
    obstacles: list[Obstacle] = []
    for gpu in view.node:
        answer = candidate(request, gpu, _rules(view, gpu))
        found = _ways(view, gpu, answer, freedom, reserved or {})
        if isinstance(found, Obstacle):
            obstacles.append(found)
        else:
            assert isinstance(answer, Candidate)
            if thrifty:
                found = all_ways(tenancy(view, gpu), answer, freedom)
                assert not isinstance(found, Obstacle)
            best.append(_cheapest(tenancy(view, gpu), found, answer.part, policy, thrifty=thrifty))
    needed = gpus_needed(request)
    if len(best) < needed:
        return Waiting(tuple(obstacles), ready=len(best))
    best.sort(key=lambda pair: pair[0])
    return granted(request, [option for _, option in best[:needed]])


def reserved_by_scan(view: NodeView, waiters: Iterable[WaitingRequest]) -> dict[str, str]:
    """The UUID of each GPU that one of the waiters wants, with the id of the first of them that does."""
    reserved: dict[str, str] = {}
    for waiter in waiters:
        try:
            check_possible(waiter.request, [(gpu, _rules(view, gpu), 1) for gpu in view.node])
        except TrancheError:
            continue
        for gpu in view.node:
            if isinstance(candidate(waiter.request, gpu, _rules(view, gpu)), Candidate):
                reserved.setdefault(gpu.uuid, waiter.id)
    return reserved


def _rules(view: NodeView, gpu: GpuState) -> GpuRules:
    return GpuRules(view.use_of(gpu.uuid), view.node.sharing)


def _ways(
    view: NodeView, gpu: GpuState, answer: Candidate | Obstacle, freedom: Freedom, reserved: Mapping[str, str]
) -> tuple[Option, ...] | Obstacle:
    changing = gpu.uuid in view.changing
    if isinstance(answer, Obstacle) and not (changing and gpu.lost):
        return answer
    if changing:
        return obstacle(gpu, Reason.LAYOUT_CHANGING, "a declared layout is being applied to it")
    assert isinstance(answer, Candidate)
    if gpu.uuid in reserved and closed(tenancy(view, gpu)) is None:
        return obstacle(gpu, Reason.QUEUED_BEHIND, f"kept for {reserved[gpu.uuid]}, which asked earlier")
    return options(tenancy(view, gpu), answer, freedom)


def _thrifty(view: NodeView, request: Request) -> bool:
    """Whether the machine is careful with its room when somebody asks for so much memory."""
    if not isinstance(request.demand, GpuMemory | GpuShare) or request.isolation is Isolation.HARD:
        return False
    if not view.node.sharing.offered:
        return False
    here = [tenancy(view, gpu) for gpu in view.node]
    untouched = sum(
        each.untouched and gpu_blocked(each) is None and each.gpu.uuid not in view.changing for each in here
    )
    return any(each.whole for each in here) or untouched - request.count < len(here) / 2


def _cheapest(
    here: Tenancy, found: Iterable[Option], wish: PartWish | None, policy: Policy, *, thrifty: bool
) -> tuple[tuple[float, ...], Option]:
    gpu = here.gpu
    geometry = geometry_of(gpu.memory_slices, gpu.profiles)

    def preference(option: Option) -> tuple[float, ...]:
        taken = toll(here, option, wish) if thrifty else 0
        slot = option.grant.slot
        spot = None if slot is None else slot.placement
        start = 0 if spot is None else spot.start
        cheap = (option.change, option.destroys, option.memory)
        if isinstance(option.grant, Part):
            weakness = 1 + list(Sharing).index(option.grant.sharing)
            opens = option.change is not Effort.NONE and slot is None and gpu.mig_capable
            return (taken, weakness, *cheap, option.left + opens * 2.0**60, gpu.index, start)
        cost = 0.0 if spot is None else policy.cost(geometry, option.mask, option.mask | spot.mask)
        return (taken, 0, *cheap, cost, gpu.index, start)

    return min(((preference(option), option) for option in found), key=lambda pair: pair[0])
