"""From an observed node and a request to a decision: granted with a Plan, or waiting with the reasons.

Order of preference, as far as the request accepts: exclusive devices; a part of a device by the driver's memory limits; by MPS;
by turns. A machine that saves its room first prefers what takes the least from future requests
(`tranche.planning.decide.answers`). Among equals: no change; an instance that only lacks its compute instance; a new instance in
free room; a new instance in the room of the fewest idle ones; a change of MIG mode on an empty GPU. Parts go together, onto the
device with the least room left. A slice smaller than its GPU goes where it costs the GPU least; to that end, idle slices made for
requests are reused or destroyed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tranche.core.allocation import FractionalShare, Grant, NodeView
from tranche.core.errors import TrancheError
from tranche.core.quantity import format_memory
from tranche.core.request import Request
from tranche.core.state import NodeState
from tranche.planning.decide.answers import Preference, Reserved, answers, asked_gpus, why_thrifty
from tranche.planning.decide.candidates import Candidate, check_possible, gpus_needed
from tranche.planning.decide.obstacle import Obstacle
from tranche.planning.decide.options import Option, OptionKind
from tranche.planning.decide.quota import refuse_beyond_quota
from tranche.planning.steps.plan import Plan, with_daemons


class Granted(NamedTuple):
    """`grants` serve the request once `plan` (often empty) has run. `note` explains how to people."""

    grants: tuple[Grant, ...]
    plan: Plan
    mechanism: str
    note: str


class Waiting(NamedTuple):
    """The request fits this machine, but not now.

    `obstacles` has one for each GPU that cannot serve it, in index order. On a large machine it has one for each group of GPUs
    with similar obstacles, and `unnamed` counts the GPUs of omitted groups. `ready` GPUs could serve one of its shares now, but
    are too few. `starts_by` is when the first of a queue starts at the latest, in seconds since the epoch; None if time limits do
    not tell.
    """

    obstacles: tuple[Obstacle, ...]
    unnamed: int = 0
    ready: int = 0
    starts_by: float | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """A clause for each obstacle, and one for the number of omitted GPUs."""
        left_out = (f"and {self.unnamed:,} more GPUs",) if self.unnamed else ()
        return (*map(str, self.obstacles), *left_out)


Decision = Granted | Waiting


class MachineOption(NamedTuple):
    """The best way for a machine to serve a request. `preferences` has one for each GPU; lower is better, also among machines."""

    preferences: tuple[Preference, ...]
    granted: Granted


def decide(
    view: NodeView, request: Request, *, adopt_foreign_destroy: bool = False, reserved: Reserved | None = None
) -> Decision:
    """Grant the request on the cheapest GPU that can serve it now, or say what it waits for.

    GPUs in `reserved` may not be used. Raises GpuNotFound, ProfileUnknown, SharingUnavailable or DoesNotFit when no state of this
    machine could ever serve the request, and QuotaExceeded when its user may never hold so much.
    """
    found = offer(view, request, adopt_foreign_destroy=adopt_foreign_destroy, reserved=reserved)
    return found.granted if isinstance(found, MachineOption) else found


def offer(
    view: NodeView, request: Request, *, adopt_foreign_destroy: bool = False, reserved: Reserved | None = None
) -> MachineOption | Waiting:
    """The decision, with preferences to compare it with other machines. Raises what `decide` raises."""
    asked, needed = asked_gpus(view, request, reserved or {}), gpus_needed(request)
    if sum(isinstance(each.candidate, Candidate) for each in asked) < needed:
        check_possible(view, request)
        refuse_beyond_quota(view, request)
    thrifty = bool(why_thrifty(request, view.node.sharing, [each.here for each in asked]))
    best: list[tuple[Preference, int, Option]] = []
    for place, each in enumerate(asked):
        if (found := each.best_option(adopt_foreign_destroy, thrifty=thrifty)) is not None:
            best.append((found[0], place, found[1]))
    if len(best) < needed:
        answered = answers(asked, adopt_foreign_destroy)
        return Waiting(answered.obstacles, answered.unnamed, answered.ready)
    best.sort(key=lambda each: each[:2])
    return MachineOption(
        tuple(each[0] for each in best[:needed]), granted(request, [each[2] for each in best[:needed]])
    )


def granted(request: Request, chosen: Sequence[Option]) -> Granted:
    """The grant of these options, one for each GPU."""
    steps = tuple(step for option in chosen for step in option.steps)
    fingerprints = {option.gpu.uuid: option.gpu.fingerprint for option in chosen if option.steps}
    grants = tuple(option.grant for option in chosen)
    plan = Plan(f"serve {request}", steps, fingerprints)
    if any(option.gpu.daemons or isinstance(option.grant, FractionalShare) for option in chosen):
        plan = with_daemons(plan, grants, NodeView(NodeState(tuple(option.gpu for option in chosen))))
    return Granted(
        grants,
        plan,
        grants[0].mechanism,
        "; ".join(_note(option) for option in chosen),
    )


def _note(option: Option) -> str:
    where = option.gpu.label
    if isinstance(option.grant, FractionalShare):
        return _part_note(option.grant, option)
    slot = option.grant.slot
    if slot is None:
        return f"{where} whole" + (", with MIG mode turned off" if option.change is OptionKind.MODE else "")
    what = f"{slot.profile} at {slot.placement} of {where}"
    match option.change:
        case OptionKind.NONE:
            return f"{what}, which was idle"
        case OptionKind.FILL:
            return f"{what}, which was idle and empty"
        case OptionKind.CREATE:
            return f"{what}, new"
        case OptionKind.REPLACE:
            count = option.destroys
            return f"{what}, replacing {count} idle instance{'s' if count > 1 else ''}"
        case OptionKind.MODE:
            return f"{what}, created after enabling MIG mode"


def _part_note(part: FractionalShare, option: Option) -> str:
    where = option.gpu.label
    if part.slot is not None:
        where = f"{part.slot.profile} at {part.slot.placement} of {where}"
    first = ", with MIG mode turned off" if option.change is OptionKind.MODE else ""
    ceiling = "" if part.compute is None else f", at most {part.compute}% of its compute,"
    return (
        f"a share of {where}{first}: {format_memory(part.memory)}{ceiling} by {part.sharing.for_people} ({part.walls})"
    )


class ChosenMachine(NamedTuple):
    """The chosen machine, by name, and what it grants."""

    name: str
    granted: Granted


class NoMachine(NamedTuple):
    """No machine can serve the request now; with the reason of each by name. If `possible` is False, none ever could."""

    reasons: Mapping[str, str]
    possible: bool


def decide_across(machines: Mapping[str, NodeView], request: Request) -> ChosenMachine | NoMachine:
    """The machine that serves the request best, by the preferences of a single machine's decision.

    Ties go to the machine with more allocations, so that empty machines stay empty, and then to the first by name.
    """
    best: tuple[tuple[object, ...], ChosenMachine] | None = None
    reasons: dict[str, str] = {}
    possible = False
    for name, view in machines.items():
        try:
            found = offer(view, request)
        except TrancheError as error:
            reasons[name] = error.message
            continue
        possible = True
        if not isinstance(found, MachineOption):
            reasons[name] = "; ".join(found.reasons)
            continue
        rank = (found.preferences, -len(view.allocations), name)
        if best is None or rank < best[0]:
            best = (rank, ChosenMachine(name, found.granted))
    return NoMachine(reasons, possible) if best is None else best[1]
