"""Why a request starts or waits: each GPU's answer, and the remedies.

It uses the same parts as the decision, so the two cannot disagree: a request is explained as startable exactly when `decide`,
with the same waiters before it, grants it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tranche.core.allocation import Allocation, FractionalShare, NodeView
from tranche.core.errors import TrancheError
from tranche.core.quantity import format_duration
from tranche.core.request import Request
from tranche.core.sharing import Sharing
from tranche.core.user_quota import within_time
from tranche.planning.decide.allocate import Granted
from tranche.planning.decide.answers import GpuFit, GpuFitList, answers, asked_gpus
from tranche.planning.decide.candidates import gpus_needed
from tranche.planning.decide.obstacle import Reason
from tranche.planning.decide.queue import (
    WaitingRequest,
    ahead_of,
    at,
    by_id,
    decide_behind,
    foreseeable,
    in_time,
    reserved_for,
)
from tranche.planning.decide.share_options import accepted, rules_of
from tranche.planning.decide.time_limits import GRACE_SECONDS
from tranche.planning.explain.remedies import NO_ADVICE, Remedy, RemedyKind, RemedyList, remedies, stronger

_NAMED_AT_MOST = 4


@dataclass(frozen=True, slots=True)
class Explanation:
    """`granted` is what the request gets now. Otherwise it waits or, with `impossible`, this machine can never serve it.

    `starts_by` is when a waiting request that is the next to start does so at the latest, in seconds since the epoch; None if
    time limits do not tell. `passed_over` explains, for each accepted mechanism stronger than its part's, why it was not used.
    """

    request: Request
    granted: Granted | None
    impossible: TrancheError | None
    answers: GpuFitList
    advice: RemedyList
    passed_over: Mapping[Sharing, str] = field(default_factory=dict)
    starts_by: float | None = None

    @property
    def gpus(self) -> tuple[GpuFit, ...]:
        """Each GPU's answer; on a large machine one answer covers all GPUs that answer alike."""
        return self.answers.named

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """Remedies, cheapest first; for a request that now gets a part of a shared device, what would give it more."""
        return self.advice.remedies

    @property
    def summary(self) -> str:
        """One line for people."""
        if self.granted is not None:
            later = "".join(f"; {remedy.text}" for remedy in self.remedies)
            return f"{self.request} can start now: {self.granted.note}{later}"
        if self.impossible is not None:
            return self.impossible.message
        texts = {each.text for each in self.answers.obstacles if each.reason is Reason.QUOTA}
        if len(texts) == 1 and not self.answers.ready:
            return f"{self.request} waits: {texts.pop()}"
        ready = self.answers.ready
        needed = gpus_needed(self.request)
        return f"{self.request} waits: it needs {needed} GPU{'s' if needed > 1 else ''}, and {ready or 'none'} can serve it now"


def explain(
    view: NodeView,
    request: Request,
    waiters: Sequence[WaitingRequest] = (),
    *,
    adopt_foreign_destroy: bool = False,
    now: float | None = None,
) -> Explanation:
    """Explain what the request would get now, behind the waiters. Raises nothing that `decide` raises.

    `now`, in seconds since the epoch, is for time limits, as in `may_start`.
    """
    view, request = at(view, now), within_time(request, view.quotas, view.asker)
    waiters = [each for each in in_time(view, waiters) if request.preemptible or not each.request.preemptible]
    reserved = reserved_for(view, waiters)
    found = answers(asked_gpus(view, request, reserved), adopt_foreign_destroy)
    granted: Granted | None = None
    impossible: TrancheError | None = None
    starts: float | None = None
    try:
        me = WaitingRequest("", request, view.asker)
        decision = decide_behind(view, me, waiters, reserved, now, adopt_foreign_destroy=adopt_foreign_destroy)
        granted = decision if isinstance(decision, Granted) else None
        starts = None if isinstance(decision, Granted) else decision.starts_by
    except TrancheError as error:
        impossible = error
    if granted is not None:
        shares = any(isinstance(grant, FractionalShare) for grant in granted.grants)
        more = stronger(view, request, adopt_foreign_destroy, reserved) if shares else NO_ADVICE
        return Explanation(request, granted, None, found, more, _passed_over(view, request, granted))
    ahead = ahead_of(view, request, waiters) or tuple(dict.fromkeys(reserved.values()))
    helps = remedies(view, request, adopt_foreign_destroy, reserved, _some_of(ahead))
    limit = None
    if impossible is None and now is not None and foreseeable(view):
        from tranche.planning.decide.backfill import Foresight, longest_limit  # most machines have no time limits

        limit = longest_limit(view, request, reserved, by_id(waiters), Foresight(view, now))
    if limit is not None:
        text = f"set a time limit of at most {format_duration(limit)}: --time {format_duration(limit)}"
        first = Remedy(RemedyKind.TIME_LIMIT, text, replace(request, time_limit=limit))
        helps = replace(helps, remedies=(first, *helps.remedies))
    if now is not None and (ended := _preempted_for(view, request, waiters, now)):
        ids = tuple(each.id for each in ended)
        text = f"make the request: Tranche then preempts {', '.join(ids)} within {GRACE_SECONDS:g} s"
        helps = replace(helps, remedies=(Remedy(RemedyKind.PREEMPT, text, request, ids), *helps.remedies))
    return Explanation(request, None, impossible, found, helps, starts_by=starts)


def _some_of(ids: Sequence[str]) -> str:
    more = len(ids) - _NAMED_AT_MOST
    return ", ".join(ids[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _preempted_for(
    view: NodeView, request: Request, waiters: Sequence[WaitingRequest], now: float
) -> tuple[Allocation, ...]:
    """The preemptible shares that would end for the request behind those waiters."""
    if not any(each.request.preemptible for each in view.allocations):
        return ()
    from tranche.planning.decide.preempt import to_preempt  # few machines allow preemptible commands

    return to_preempt(view, [*waiters, WaitingRequest("", request, view.asker)], "", now)


def _passed_over(view: NodeView, request: Request, granted: Granted) -> Mapping[Sharing, str]:
    """Why granted parts do not use a stronger mechanism, if the machine or the GPU lacks it."""
    found: dict[Sharing, str] = {}
    for grant in granted.grants:
        if isinstance(grant, FractionalShare):
            gpu = view.node.gpu(grant.gpu_uuid)
            ways, rules = accepted(request), rules_of(view, gpu)
            for way in ways[: ways.index(grant.sharing)]:
                if why := rules.why_not(way, gpu):
                    found[way] = why
                elif grant.slot is not None and way is Sharing.MEMORY_LIMITS:
                    found[way] = "the driver does not limit MIG slices"
    return found
