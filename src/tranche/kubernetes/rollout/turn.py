"""What a node wants from the rollout, and what it may do: what the MIG manager and its ticket tell each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tranche.kubernetes.rollout.ticket import RolloutTicket, TicketState


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


class TicketAction(StrEnum):
    """What to do with the own ticket: nothing, write it, or remove it."""

    NONE = "none"
    WRITE = "write"
    REMOVE = "remove"


def next_ticket(
    node: str, ticket: RolloutTicket | None, wish: RolloutStatus
) -> tuple[TicketAction, RolloutTicket | None]:
    """What to do with the own ticket for a wish, and the ticket to write.

    A failed node that gets another layout keeps its place; after someone says go on, it joins the end of the queue.
    """
    if wish.stage is LayoutChangeState.DONE:
        return (TicketAction.NONE if ticket is None else TicketAction.REMOVE), None
    if wish.stage is LayoutChangeState.FAILED:
        return _failed(ticket, wish)
    if ticket is None:
        return TicketAction.WRITE, RolloutTicket(node, TicketState.WAITING, wish.layout, wish.digest)
    same = (ticket.layout, ticket.digest) == (wish.layout, wish.digest)
    if same and ticket.state is not TicketState.GRANTED:
        return TicketAction.NONE, None
    if ticket.state is TicketState.FAILED and ticket.go_on:
        return TicketAction.REMOVE, None
    state = TicketState.WAITING if ticket.state is TicketState.WAITING else TicketState.CHANGING
    return TicketAction.WRITE, RolloutTicket(node, state, wish.layout, wish.digest, lease=ticket.lease)


def _failed(ticket: RolloutTicket | None, wish: RolloutStatus) -> tuple[TicketAction, RolloutTicket | None]:
    if ticket is None:
        return TicketAction.NONE, None
    if ticket.state in (TicketState.WAITING, TicketState.GRANTED):
        return TicketAction.REMOVE, None  # nothing was changed, so no node is held up
    if ticket.state is TicketState.FAILED and ticket.message == wish.message:
        return TicketAction.NONE, None
    failed = RolloutTicket(
        ticket.node, TicketState.FAILED, ticket.layout, wish.digest or ticket.digest, wish.message, lease=ticket.lease
    )
    return TicketAction.WRITE, failed
