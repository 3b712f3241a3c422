"""Decides whose turn it is: every ticket and the budget go in, the tickets to grant come out. Pure.

The budget says how many nodes may change at once: a number, or a percentage of all nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tranche.core.errors import UsageError
from tranche.core.printable import shortened
from tranche.kubernetes.rollout.ticket import RolloutTicket, TicketState

EVERY_NODE = 10**9
"""More nodes than exist: all of them may change at once, including nodes not counted yet."""

_TEXT = re.compile(r"(\d{1,6})(%?)")


@dataclass(frozen=True, slots=True)
class RolloutLimit:
    """`amount` nodes, or that many percent of all. With 0 no node may begin."""

    amount: int
    percent: bool = False

    def nodes(self, fleet: int | None) -> int:
        """How many nodes that is among `fleet`; a percentage is rounded up, as a DaemonSet does. One when the number is unknown.

        All of them are EVERY_NODE, independent of the number.
        """
        if not self.percent or self.amount == 0:
            return self.amount
        if self.amount == 100:
            return EVERY_NODE
        return 1 if fleet is None else max(-(-fleet * self.amount // 100), 1)

    def __str__(self) -> str:
        return f"{self.amount}%" if self.percent else str(self.amount)


def parse_budget(text: str) -> RolloutLimit:
    """`3` or `10%`.

    Raises:
        UsageError: it is neither, or more than 100 percent.
    """
    found = _TEXT.fullmatch(text.strip())
    if found is None or (found[2] and int(found[1]) > 100):
        raise UsageError(f"'{text}' is not a number of nodes", hint="say how many may change at once, such as 3 or 10%")
    return RolloutLimit(int(found[1]), bool(found[2]))


LOST_SECONDS = 180.0
"""After so long without a renewal, a changing node holds the others up, like one that failed."""
UNTAKEN_SECONDS = 60.0
"""A turn that its node has not taken after so long is taken back: its agent is gone."""
_LONGEST_REASON = 160


@dataclass(frozen=True, slots=True)
class RolloutDecision:
    """`granted` may begin now; `taken_back` lose the turn that they did not take. While there are `held_up_by`, no node may
    begin.

    `waiting` is how many wait after this, and `busy` have the places of the budget.
    """

    granted: tuple[RolloutTicket, ...] = ()
    taken_back: tuple[RolloutTicket, ...] = ()
    held_up_by: tuple[RolloutTicket, ...] = ()
    waiting: int = 0
    busy: tuple[RolloutTicket, ...] = ()


def grants(tickets: Sequence[RolloutTicket], limit: int, silent: Mapping[str, float]) -> RolloutDecision:
    """The tickets that may begin. `limit` is how many may change at once, `silent` is how many seconds each ticket has looked the
    same.

    Tickets keep their order. A node that failed, or was no longer heard while it changed, holds all others up until someone says
    go on; then it takes no place of the budget. For any other node that word has no effect.
    """

    def unheard(ticket: RolloutTicket, seconds: float) -> bool:
        return silent.get(ticket.node, 0.0) >= seconds

    by_state = {state: [each for each in tickets if each.state is state] for state in TicketState}
    waiting = sorted(by_state[TicketState.WAITING], key=lambda each: each.order)
    taken_back = tuple(each for each in by_state[TicketState.GRANTED] if unheard(each, UNTAKEN_SECONDS))
    lost = [each for each in by_state[TicketState.CHANGING] if unheard(each, LOST_SECONDS)]
    in_trouble = (*by_state[TicketState.FAILED], *lost)
    held_up_by = tuple(each for each in in_trouble if not each.go_on)
    left = len(waiting) + len(taken_back)
    if held_up_by:
        return RolloutDecision(taken_back=taken_back, held_up_by=held_up_by, waiting=left)
    # The rollout now passes over those in trouble.
    at_work = (*by_state[TicketState.GRANTED], *by_state[TicketState.CHANGING])
    busy = tuple(each for each in at_work if each not in lost)
    granted = tuple([each for each in waiting if not each.passed_over][: max(limit - len(busy), 0)])
    return RolloutDecision(granted, taken_back, waiting=left - len(granted), busy=(*busy, *granted))


def busy_text(tickets: Sequence[RolloutTicket]) -> str:
    """The nodes that have the places of the budget, in words: `nodes a, b, c, and 2 nodes more`; "" for none."""
    named = ", ".join(sorted(each.node for each in tickets)[:3])
    return f"node{'s' if len(tickets) > 1 else ''} {named}{_more(len(tickets) - 3)}" if tickets else ""


def held_up_text(tickets: Sequence[RolloutTicket]) -> str:
    """The nodes that hold the others up, and why, in one sentence; "" for none."""
    named = [
        f"node {each.node} failed: {shortened(each.message, _LONGEST_REASON)}"
        if each.state is TicketState.FAILED
        else f"node {each.node} started to change and stopped reporting"
        for each in sorted(tickets, key=lambda each: each.order)[:3]
    ]
    return "; ".join(named) + _more(len(tickets) - 3)


def _more(nodes: int) -> str:
    return f", and {nodes} more nodes" if nodes > 0 else ""
