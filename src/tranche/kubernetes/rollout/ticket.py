"""A node's place in the queue for a change of layout: a lease, so that `kubectl get leases` shows it; and whose turn it is. Pure.

The lease's holder column shows the state, and its age the order. A node creates its own ticket, and removes it when it has its
layout; the leader of the rollout says whose turn it is: every ticket and the budget go in, the tickets to grant come out. The MIG
manager says what the node wants, and hears what it may do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tranche.core.errors import UsageError
from tranche.core.printable import shortened
from tranche.kubernetes.api.object_client import Lease

TICKET_LABEL = "tranche.dev/rollout"
TICKET = "ticket"
GO_ON_ANNOTATION = "tranche.dev/go-on"
"""An administrator writes it on the ticket of a failed node, with any value: the others go on."""

_PREFIX = "tranche-layout."
_NODE = "tranche.dev/node"
_LAYOUT = "tranche.dev/layout"
_DIGEST = "tranche.dev/layout-digest"
_MESSAGE = "tranche.dev/message"
_PASSED_OVER = "tranche.dev/passed-over"
_LONGEST_NAME = 253
_LONGEST_MESSAGE = 500


class TicketState(StrEnum):
    """WAITING for its turn; GRANTED until its node takes it; CHANGING until the end; FAILED, which holds up all others.

    All but the first take a place of the budget.
    """

    WAITING = "waiting"
    GRANTED = "granted"
    CHANGING = "changing"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RolloutTicket:
    """A node's ticket. `digest` identifies the content of its layout; `lease` is what it was read from.

    `passed_over`: it did not take the turn that it was granted, and its node was not heard since.
    """

    node: str
    state: TicketState
    layout: str
    digest: str
    message: str = ""
    go_on: bool = False
    passed_over: bool = False
    lease: Lease = field(default_factory=lambda: Lease(""))

    @property
    def order(self) -> tuple[str, str]:
        """Sorts by arrival."""
        return self.lease.created, self.node


def ticket_name(node: str) -> str:
    """The name of a node's ticket, with a hash of the node's name where that is too long."""
    name = f"{_PREFIX}{node}"
    return name if len(name) <= _LONGEST_NAME else f"{_PREFIX}{hashlib.sha256(node.encode()).hexdigest()}"


def read_ticket(lease: Lease) -> RolloutTicket | None:
    """The ticket in a lease; None for a lease without a node or a known state."""
    node, state = lease.annotations.get(_NODE, ""), lease.holder
    if not node or state not in set(TicketState):
        return None
    said = lease.annotations
    return RolloutTicket(
        node=node,
        state=TicketState(state),
        layout=said.get(_LAYOUT, ""),
        digest=said.get(_DIGEST, ""),
        message=said.get(_MESSAGE, ""),
        go_on=GO_ON_ANNOTATION in said,
        passed_over=bool(lease.renewed) and said.get(_PASSED_OVER) == lease.renewed,
        lease=lease,
    )


def write_ticket(ticket: RolloutTicket, *, node_uid: str) -> Lease:
    """The lease for the ticket, replacing the one that it was read from. It is deleted with the node's object."""
    own: Mapping[str, str] = {
        _NODE: ticket.node,
        _LAYOUT: ticket.layout,
        _DIGEST: ticket.digest,
        _MESSAGE: shortened(ticket.message, _LONGEST_MESSAGE),
        _PASSED_OVER: ticket.lease.renewed if ticket.passed_over else "",
    }
    # What was said of one failure does not hold for the next.
    past = () if ticket.state is TicketState.FAILED else (GO_ON_ANNOTATION,)
    others = {key: value for key, value in ticket.lease.annotations.items() if key not in (*own, *past)}
    return replace(
        ticket.lease,
        name=ticket_name(ticket.node),
        holder=ticket.state.value,
        labels={**ticket.lease.labels, TICKET_LABEL: TICKET},
        annotations={**others, **{key: value for key, value in own.items() if value}},
        owner_node=(ticket.node, node_uid) if node_uid else ticket.lease.owner_node,
    )


def version_number(lease: Lease) -> int:
    """A lease's version as a number that orders the versions of the same lease; 0 for other text."""
    return int(lease.version) if lease.version.isdecimal() else 0


class LayoutChangeState(StrEnum):
    """DONE: no change is wanted. WANTED: one should begin or goes on. FAILED: one failed, and will be tried again."""

    DONE = "done"
    WANTED = "wanted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """A node's progress. `digest` identifies the layout's content, "" if unknown; `message` says what failed."""

    stage: LayoutChangeState
    layout: str = ""
    digest: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RolloutPermission:
    """What a node may do. `why_not` is what it waits for if it may not."""

    ticket: RolloutTicket | None = None
    why_not: str = ""

    def allows(self, digest: str) -> bool:
        """Whether a change to the layout with that digest may begin or go on."""
        if self.ticket is None:
            return False
        state = self.ticket.state
        return state is TicketState.CHANGING or (state is TicketState.FAILED and self.ticket.digest == digest)


def next_ticket(node: str, ticket: RolloutTicket | None, wish: RolloutStatus) -> RolloutTicket | None:
    """The ticket that a node with this one should have for a wish: the same one where nothing is to be done, None for none.

    A failed node that gets another layout keeps its place; after someone says go on, it joins the end of the queue.
    """
    if wish.stage is LayoutChangeState.DONE:
        return None
    if wish.stage is LayoutChangeState.FAILED:
        return _failed(ticket, wish)
    if ticket is None:
        return RolloutTicket(node, TicketState.WAITING, wish.layout, wish.digest)
    same = (ticket.layout, ticket.digest) == (wish.layout, wish.digest)
    if same and ticket.state is not TicketState.GRANTED:
        return ticket
    if ticket.state is TicketState.FAILED and ticket.go_on:
        return None
    state = TicketState.WAITING if ticket.state is TicketState.WAITING else TicketState.CHANGING
    return RolloutTicket(node, state, wish.layout, wish.digest, lease=ticket.lease)


def _failed(ticket: RolloutTicket | None, wish: RolloutStatus) -> RolloutTicket | None:
    if ticket is None or ticket.state in (TicketState.WAITING, TicketState.GRANTED):
        return None  # nothing was changed, so no node is held up
    if ticket.state is TicketState.FAILED and ticket.message == wish.message:
        return ticket
    digest = wish.digest or ticket.digest
    return RolloutTicket(ticket.node, TicketState.FAILED, ticket.layout, digest, wish.message, lease=ticket.lease)


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
        raise UsageError(
            f"'{text}' is not a number of nodes", hint="specify how many nodes can change at once, such as 3 or 10%"
        )
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
