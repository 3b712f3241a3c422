"""Why a request starts or waits: what each GPU answers, and what would help.

It is made of the same parts as the decision, so the two cannot disagree: a request is explained as startable exactly when
`decide`, with the same waiters before it, grants it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.core.request import Request
from tranche.core.state import GpuState
from tranche.planning.allocate import Granted, decide, ways
from tranche.planning.candidates import gpus_needed
from tranche.planning.obstacle import Obstacle
from tranche.planning.options import Freedom
from tranche.planning.policy import DEFAULT, Policy
from tranche.planning.queue import Waiter, reserved_for
from tranche.planning.remedies import Question, Remedy, remedies
from tranche.planning.tenancy import Tenancy, tenancies


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """What one GPU says to the request: `obstacle` is None when the GPU could serve it (or its share of it) now."""

    gpu: GpuState
    obstacle: Obstacle | None

    @property
    def text(self) -> str:
        """One line for people."""
        return "can serve it now" if self.obstacle is None else self.obstacle.text


@dataclass(frozen=True, slots=True)
class Explanation:
    """`granted` is what the request gets now. Otherwise it waits or, with `impossible`, can never be served by this machine."""

    request: Request
    granted: Granted | None
    impossible: TrancheError | None
    gpus: tuple[GpuAnswer, ...]
    remedies: tuple[Remedy, ...]

    @property
    def fits(self) -> bool:
        """Whether the request could start now."""
        return self.granted is not None

    @property
    def summary(self) -> str:
        """One line for people."""
        if self.granted is not None:
            return f"{self.request} can start now: {self.granted.note}"
        if self.impossible is not None:
            return self.impossible.message
        ready = sum(each.obstacle is None for each in self.gpus)
        needed = gpus_needed(self.request)
        return f"{self.request} waits: it needs {needed} GPU{'s' if needed > 1 else ''} and {ready} can serve it now"


def explain(
    view: NodeView,
    request: Request,
    waiters: Sequence[Waiter] = (),
    *,
    policy: Policy = DEFAULT,
    adopt_foreign_destroy: bool = False,
    mode_change_allowed: bool = True,
) -> Explanation:
    """Explain what the request would meet if it were made now, behind the waiters. Raises nothing that `decide` raises."""
    reserved = reserved_for(view, waiters)
    freedom = Freedom(adopt_foreign_destroy, mode_change_allowed)
    answers = tuple(_answer(view, here, request, freedom, reserved) for here in tenancies(view))
    granted: Granted | None = None
    impossible: TrancheError | None = None
    try:
        decision = decide(
            view,
            request,
            policy=policy,
            adopt_foreign_destroy=adopt_foreign_destroy,
            mode_change_allowed=mode_change_allowed,
            reserved=reserved,
        )
        granted = decision if isinstance(decision, Granted) else None
    except TrancheError as error:
        impossible = error
    if granted is not None:
        return Explanation(request, granted, None, answers, ())
    question = Question(view, request, reserved, policy, adopt_foreign_destroy, mode_change_allowed)
    return Explanation(request, None, impossible, answers, remedies(question))


def _answer(view: NodeView, here: Tenancy, request: Request, freedom: Freedom, reserved: dict[str, str]) -> GpuAnswer:
    found = ways(view, here, request, freedom, reserved)
    return GpuAnswer(here.gpu, found if isinstance(found, Obstacle) else None)
