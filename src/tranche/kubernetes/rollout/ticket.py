"""A node's place in the queue for a change of layout: a lease, so that `kubectl get leases` shows it.

The lease's holder column shows the state, and its age the order. A node creates its own ticket, and removes it when it has its
layout; the leader of the rollout says whose turn it is. The MIG manager says what the node wants, and hears what it may do. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tranche.core.printable import shortened
from tranche.kubernetes.api.leases import Lease

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
