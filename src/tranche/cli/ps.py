"""`tranche ps`: who holds which share, and who waits."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import click

from tranche.cli import describe
from tranche.cli.documents import allocation_document, obstacle_document
from tranche.cli.output import print_json, print_table
from tranche.cli.runtime import open_host
from tranche.cli.settings import Settings, TrancheCommand, output_option
from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.core.wire import request_to_dict
from tranche.local.attendance import silent
from tranche.node import records
from tranche.planning.allocate import Granted
from tranche.planning.obstacle import Obstacle
from tranche.planning.queue import Waiter, may_start

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
        waiters = [waiter_document(view, queue, position, away) for position in range(len(queue))]
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
        print_table(_WAITER_COLUMNS, [_waiter_row(view, queue, position, now, away) for position in range(len(queue))])


def why_it_waits(
    view: NodeView, queue: Sequence[records.Waiter], waiter_id: str, away: Collection[str]
) -> tuple[str, tuple[Obstacle, ...]]:
    """What a waiter waits for, as a sentence and as obstacles; it may be about to start.

    `away` are the waiters that do not answer, and that others do not wait for.
    """
    if waiter_id in away:
        return "its process is stopped or does not answer; others are served meanwhile", ()
    there = [Waiter(each.id, each.request) for each in queue if each.id not in away]
    try:
        decision = may_start(view, there, waiter_id)
    except TrancheError as error:
        return error.message, ()
    if isinstance(decision, Granted):
        return "about to start", ()
    why = describe.gpu_texts((each.gpu_index, each.full_text) for each in decision.obstacles)
    return why + (f"; and {decision.unnamed:,} more GPUs" if decision.unnamed else ""), decision.obstacles


def _waiter_row(
    view: NodeView, queue: Sequence[records.Waiter], position: int, now: float, away: Collection[str]
) -> tuple[object, ...]:
    waiter = queue[position]
    why, _ = why_it_waits(view, queue, waiter.id, away)
    return (
        position + 1,
        waiter.id,
        waiter.request,
        describe.age(now - waiter.created),
        waiter.pid,
        waiter.command,
        why,
    )


def waiter_document(
    view: NodeView, queue: Sequence[records.Waiter], position: int, away: Collection[str]
) -> dict[str, object]:
    """One waiter by its place in the queue, from 0, with what it waits for."""
    waiter = queue[position]
    why, obstacles = why_it_waits(view, queue, waiter.id, away)
    return {
        "position": position + 1,
        "id": waiter.id,
        "request": request_to_dict(waiter.request),
        "created": describe.timestamp(waiter.created),
        "pid": waiter.pid,
        "command": waiter.command,
        "why": why,
        "obstacles": [obstacle_document(each) for each in obstacles],
    }
