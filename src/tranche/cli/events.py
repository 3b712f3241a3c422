"""`tranche events`: what was allocated, cut and released."""

from __future__ import annotations

import json
from contextlib import closing

import click

from tranche.cli.output import pause, print_json, shortened, show
from tranche.cli.runtime import Settings, TrancheCommand, output_option, register_places
from tranche.core.events import Event
from tranche.documents import describe
from tranche.documents.envelope import document
from tranche.documents.events import event_document
from tranche.node.store import chronicle
from tranche.node.store.ledger import open_to_read

_FOLLOW_SECONDS = 0.5


@click.command(cls=TrancheCommand)
@click.option("-f", "--follow", is_flag=True, help="Print new events until Ctrl-C.")
@click.option(
    "--last",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="N",
    help="Number of recent events to print.",
)
@output_option()
@click.pass_obj
def command(settings: Settings, /, follow: bool, last: int, output: str) -> None:
    """List this machine's events, newest last.

    The list includes allocations, new slices, undone changes, releases, lost GPUs and faults on shared devices. The
    ledger keeps the newest 10,000 events. With --follow and -o json, the output is one JSON document per line.
    """
    places = register_places(settings, reading=True)
    with closing(open_to_read(places)) as ledger:
        with ledger.read() as db:
            found = chronicle.events(db, last=last)
            newest = chronicle.events(db, last=1)
        if output == "json" and not follow:
            print_json("EventList", events=[event_document(event) for event in found])
            return
        _print(found, output)
        position = newest[-1].position if newest else 0
        while follow:
            pause(_FOLLOW_SECONDS)
            with ledger.read() as db:
                found = chronicle.events(db, after=position)
            _print(found, output)
            position = found[-1].position if found else position


def _print(found: tuple[Event, ...], output: str) -> None:
    for event in found:
        if output == "json":
            click.echo(json.dumps(document("Event", **event_document(event))))
        else:
            show(_line(event))


def _line(event: Event) -> str:
    about = event.allocation_id or event.gpu_uuid or "-"
    return f"{describe.local_time(event.time)}  {event.name:<15}  {about:<8}  {shortened(event.message)}"
