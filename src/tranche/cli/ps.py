"""`tranche ps`: who holds which share, and who waits."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import click

from tranche.cli.output import print_json, print_table
from tranche.cli.runtime import open_host
from tranche.cli.settings import Settings, TrancheCommand, output_option
from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.core.wire import request_to_dict
from tranche.documents import describe
from tranche.documents.shares import allocation_document, obstacle_document
from tranche.local.attendance import silent
from tranche.node import records
from tranche.planning.allocate import Decision, Granted
from tranche.planning.obstacle import Obstacle
from tranche.planning.queue import Waiter, outlooks

_ALLOCATION_COLUMNS = ("ID", "REQUEST", "GIVEN", "ISOLATION", "PHASE", "AGE", "PID", "COMMAND")
_WAITER_COLUMNS = ("#", "WAITING", "REQUEST", "AGE", "PID", "COMMAND", "WHY")


@click.command(cls=TrancheCommand)
@output_option()
@click.pass_obj
def command(settings: Settings, /, output: str) -> None:
    """List the allocations, oldest first, and the requests that wait, in the order in which they are served."""
    with open_host(settings) as host:
        view = host.view()
        queue = host.waiters()
        away = silent(host.places, queue, time.time())
    now = time.time()
    if output == "json":
        allocations = [allocation_document(each, view) for each in view.allocations]
        waiters = waiter_documents(view, queue, away)
        print_json("AllocationList", allocations=allocations, waiters=waiters)
        return
    rows = [
        (
            each.id,
            each.request,
            describe.grants(each, view.node),
            each.grants[0].isolation,
            describe.phase(each, view),
            describe.age(now - each.created),
            each.holder_pid or None,
            describe.command(each),
        )
        for each in view.allocations
    ]
    print_table(_ALLOCATION_COLUMNS, rows)
    if queue:
        click.echo()
        reasons = why_they_wait(view, queue, away)
        waiting = [
            _waiter_row(position, waiter, why, now)
            for position, (waiter, (why, _)) in enumerate(zip(queue, reasons, strict=True), start=1)
        ]
        print_table(_WAITER_COLUMNS, waiting)


def why_they_wait(
    view: NodeView, queue: Sequence[records.Waiter], away: Collection[str]
) -> list[tuple[str, tuple[Obstacle, ...]]]:
    """What each waiter waits for, as a sentence and as obstacles; it may be about to start.

    `away` are the waiters that do not answer, and that others do not wait for.
    """
    answers = outlooks(view, [Waiter(each.id, each.request) for each in queue if each.id not in away])
    return [_AWAY if each.id in away else _why(next(answers)) for each in queue]


_AWAY: tuple[str, tuple[Obstacle, ...]] = ("its process is stopped or does not answer; others are served meanwhile", ())


def _why(outlook: Decision | TrancheError) -> tuple[str, tuple[Obstacle, ...]]:
    if isinstance(outlook, TrancheError):
        return outlook.message, ()
    if isinstance(outlook, Granted):
        return "about to start", ()
    why = describe.gpu_texts((each.gpu_index, each.full_text) for each in outlook.obstacles)
    return why + (f"; and {outlook.unnamed:,} more GPUs" if outlook.unnamed else ""), outlook.obstacles


def _waiter_row(position: int, waiter: records.Waiter, why: str, now: float) -> tuple[object, ...]:
    return (
        position,
        waiter.id,
        waiter.request,
        describe.age(now - waiter.created),
        waiter.pid,
        waiter.command,
        why,
    )


def waiter_documents(view: NodeView, queue: Sequence[records.Waiter], away: Collection[str]) -> list[dict[str, object]]:
    """The waiters in their order, each with its place in the queue, from 1, and with what it waits for."""
    reasons = why_they_wait(view, queue, away)
    return [
        {
            "position": position,
            "id": waiter.id,
            "request": request_to_dict(waiter.request),
            "created": describe.timestamp(waiter.created),
            "pid": waiter.pid,
            "command": waiter.command,
            "why": why,
            "obstacles": [obstacle_document(each) for each in obstacles],
        }
        for position, (waiter, (why, obstacles)) in enumerate(zip(queue, reasons, strict=True), start=1)
    ]
