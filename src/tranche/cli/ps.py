"""`tranche ps`: who holds which share, and who waits."""

from __future__ import annotations

import time

import click

from tranche.cli.output import print_json, print_table, show
from tranche.cli.runtime import Settings, TrancheCommand, look_at, open_host, output_option
from tranche.documents import describe
from tranche.documents.holder_names import owner_name, owner_now
from tranche.documents.overview import allocation_document, waiter_documents, why_they_wait
from tranche.local.wakeup_pipe import silent
from tranche.node.store.register import process_owners

_ALLOCATION_COLUMNS = ("ID", "USER", "REQUEST", "GIVEN", "ISOLATION", "PHASE", "AGE", "PID", "COMMAND")
_WAITER_COLUMNS = ("WAITING", "PLACE", "USER", "REQUEST", "AGE", "PID", "COMMAND", "WHY")


@click.command(cls=TrancheCommand)
@output_option()
@click.pass_obj
def command(settings: Settings, /, output: str) -> None:
    """List allocations and waiting requests.

    Allocations appear oldest first, and waiting requests in queue order. In the PID column, +2 means that the command
    left two more processes running. A ? marks a process that may belong to the command; only root can tell.
    """
    with open_host(settings, reading=True) as host:
        view = look_at(host)
        queue = host.waiters()
        away = silent(host.places, queue, time.time())
    owners = process_owners(view.allocations, queue)
    now = time.time()
    if output == "json":
        allocations = [allocation_document(each, view, owners) for each in view.allocations]
        waiters = waiter_documents(view, queue, away, owners)
        print_json("AllocationList", allocations=allocations, waiters=waiters)
        return
    rows = [
        (
            each.id,
            owner_name(owner_now(each, owners)),
            each.request,
            describe.grants(each, view.node),
            each.grants[0].walls.isolation,
            describe.phase(each, view),
            describe.age(now - each.created),
            describe.pids(each),
            describe.command(each),
        )
        for each in view.allocations
    ]
    print_table(_ALLOCATION_COLUMNS, rows)
    if queue:
        show()
        reasons = why_they_wait(view, queue, away, owners)
        waiting = [
            (
                waiter.id,
                position,
                owner_name(owners.get(waiter.id)),
                waiter.request,
                describe.age(now - waiter.created),
                waiter.pid,
                waiter.command,
                why,
            )
            for position, (waiter, (why, _)) in enumerate(zip(queue, reasons, strict=True), start=1)
        ]
        print_table(_WAITER_COLUMNS, waiting)
