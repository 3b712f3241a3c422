"""Waiters, and what they wait for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.core.keeper import owner_to_dict
from tranche.core.wire import request_to_dict
from tranche.documents import describe
from tranche.documents.holder_names import NO_OWNERS, NameTable, Owners, names_of
from tranche.documents.reasons import summed_up
from tranche.documents.shares import obstacle_document
from tranche.node.store.records import Waiter
from tranche.planning.decide.allocate import Decision, Granted
from tranche.planning.decide.obstacle import Obstacle
from tranche.planning.decide.queue import WaitingRequest, outlooks


def waiter_documents(
    view: NodeView, queue: Sequence[Waiter], away: Collection[str], owners: Owners = NO_OWNERS
) -> list[dict[str, object]]:
    """The waiters in order, each with its place in the queue, from 1, and what it waits for."""
    reasons = why_they_wait(view, queue, away, owners)
    return [
        {
            "position": position,
            "id": waiter.id,
            "request": request_to_dict(waiter.request),
            "created": describe.timestamp(waiter.created),
            "pid": waiter.pid,
            "owner": owner_to_dict(owners.get(waiter.id)),
            "command": waiter.command,
            "why": why,
            "obstacles": [obstacle_document(each) for each in obstacles],
        }
        for position, (waiter, (why, obstacles)) in enumerate(zip(queue, reasons, strict=True), start=1)
    ]


def why_they_wait(
    view: NodeView, queue: Sequence[Waiter], away: Collection[str], owners: Owners = NO_OWNERS
) -> list[tuple[str, tuple[Obstacle, ...]]]:
    """What each waiter waits for, as a sentence and as obstacles; a waiter may be about to start.

    `away` are the waiters that do not answer; others do not wait for them.
    """
    answers = outlooks(view, [WaitingRequest(each.id, each.request) for each in queue if each.id not in away])
    names = names_of(view.allocations, queue, owners)
    return [_AWAY if each.id in away else _why(next(answers), names) for each in queue]


_AWAY: tuple[str, tuple[Obstacle, ...]] = ("its process is stopped or does not answer; others are served meanwhile", ())


def _why(outlook: Decision | TrancheError, names: NameTable) -> tuple[str, tuple[Obstacle, ...]]:
    if isinstance(outlook, TrancheError):
        return outlook.message, ()
    if isinstance(outlook, Granted):
        return "about to start", ()
    return summed_up(outlook, names), outlook.obstacles
