"""From an observed node and a request to a decision: granted, with the Plan that makes it true, or waiting, with the reasons.

Preferred in this order: what needs no change; an instance that only lacks its compute instance; a new instance in free room;
a new instance in the room of the fewest idle ones; a change of MIG mode on a GPU where nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tranche.core.allocation import Grant, NodeView
from tranche.core.request import Request
from tranche.core.state import GpuState
from tranche.planning.candidates import candidate, check_possible, gpus_needed
from tranche.planning.obstacle import Obstacle, Reason, obstacle
from tranche.planning.options import Change, Freedom, Option, options
from tranche.planning.plan import Plan
from tranche.planning.policy import DEFAULT, Policy
from tranche.planning.tables import geometry_of
from tranche.planning.tenancy import Tenancy, tenancies


@dataclass(frozen=True, slots=True)
class Granted:
    """The request is served by `grants` once `plan` (often empty) is carried out. `note` says for people how."""

    grants: tuple[Grant, ...]
    plan: Plan
    mechanism: str
    note: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request fits this machine, but not now. `obstacles` has one for each GPU that cannot serve it, in index order."""

    obstacles: tuple[Obstacle, ...]


Decision = Granted | Waiting
_Preference = tuple[int, int, int, float, int, int]


def decide(
    view: NodeView,
    request: Request,
    *,
    policy: Policy = DEFAULT,
    adopt_foreign_destroy: bool = False,
    mode_change_allowed: bool = True,
    reserved: Mapping[str, str] | None = None,
) -> Decision:
    """Grant the request on the cheapest GPU that can serve it now, or say what it waits for.

    `reserved` maps the UUID of each GPU that may not be used to the waiter it is kept for. Raises GpuNotFound, ProfileUnknown,
    SharingUnavailable or DoesNotFit when no state of this machine could ever serve the request.
    """
    check_possible(request, view.node)
    freedom = Freedom(adopt_foreign_destroy, mode_change_allowed)
    best: list[tuple[_Preference, Option]] = []
    obstacles: list[Obstacle] = []
    for here in tenancies(view):
        found = ways(view, here, request, freedom, reserved or {})
        if isinstance(found, Obstacle):
            obstacles.append(found)
        else:
            best.append(_cheapest(here.gpu, found, policy))
    needed = gpus_needed(request)
    if len(best) < needed:
        return Waiting(tuple(obstacles))
    best.sort(key=lambda pair: pair[0])
    return _granted(request, [option for _, option in best[:needed]])


def ways(
    view: NodeView, here: Tenancy, request: Request, freedom: Freedom, reserved: Mapping[str, str]
) -> tuple[Option, ...] | Obstacle:
    """The ways to serve the request on one of the view's GPUs now, at least one; or what is in the way."""
    gpu = here.gpu
    answer = candidate(request, gpu)
    if isinstance(answer, Obstacle):
        return answer
    if gpu.uuid in view.changing:
        return obstacle(gpu, Reason.LAYOUT_CHANGING, "a declared layout is being applied to it")
    if gpu.uuid in reserved:
        return obstacle(gpu, Reason.QUEUED_BEHIND, f"kept for {reserved[gpu.uuid]}, which asked earlier")
    return options(here, answer, freedom)


def _cheapest(gpu: GpuState, found: Sequence[Option], policy: Policy) -> tuple[_Preference, Option]:
    """Cheapest change first, then fewest instances destroyed, least memory given, the policy's cost, index, start."""
    geometry = geometry_of(gpu.memory_slices, gpu.profiles)

    def preference(option: Option) -> _Preference:
        spot = option.grant.placement
        cost = 0.0 if spot is None else policy.cost(geometry, option.mask, option.mask | spot.mask)
        return (option.change, option.destroys, option.memory, cost, gpu.index, 0 if spot is None else spot.start)

    return min(((preference(option), option) for option in found), key=lambda pair: pair[0])


def _granted(request: Request, chosen: Sequence[Option]) -> Granted:
    steps = tuple(step for option in chosen for step in option.steps)
    fingerprints = {option.gpu.uuid: option.gpu.fingerprint for option in chosen if option.steps}
    grants = tuple(option.grant for option in chosen)
    return Granted(
        grants,
        Plan(f"serve {request}", steps, fingerprints),
        grants[0].mechanism,
        "; ".join(_note(option) for option in chosen),
    )


def _note(option: Option) -> str:
    where = option.gpu.label
    if option.grant.placement is None:
        return f"{where} whole" + (", with MIG mode turned off" if option.change is Change.MODE else "")
    what = f"{option.grant.profile} at {option.grant.placement} of {where}"
    match option.change:
        case Change.NONE:
            return f"{what}, which was idle"
        case Change.FILL:
            return f"{what}, which was idle and empty"
        case Change.CREATE:
            return f"{what}, new"
        case Change.REPLACE:
            count = option.destroys
            return f"{what}, new in the room of {count} idle instance{'s' if count > 1 else ''}"
        case Change.MODE:
            return f"{what}, new after turning MIG mode on"
