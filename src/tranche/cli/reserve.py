"""`tranche reserve`: set GPUs aside for users or for maintenance."""

from __future__ import annotations

import math
import time

import click

from tranche.cli.options import named_users
from tranche.cli.output import print_json, print_table, say, warn
from tranche.cli.runtime import Settings, TrancheCommand, TrancheGroup, look_at, open_host, output_option, user_name
from tranche.core.errors import UsageError
from tranche.core.moment import parse_moment, said
from tranche.core.quantity import parse_duration
from tranche.core.reservation import Reservation
from tranche.core.sharing_policy import gpu_named
from tranche.core.state import NodeState
from tranche.core.user_quota import GROUP, is_group
from tranche.documents.describe import age, ranges
from tranche.documents.holder_names import names_of
from tranche.documents.machine import reservation_document
from tranche.local.queue import Queue
from tranche.node import policy_change
from tranche.node.store.register import process_owners
from tranche.planning.decide.reservation_choice import in_the_way, others_on, strangers
from tranche.planning.decide.reservations import over


@click.group("reserve", cls=TrancheGroup)
def command() -> None:
    """Reserve GPUs for users or for maintenance.

    \b
    $ tranche reserve add --gpus 4 --from '2026-12-01 09:00' --for 6h --user ann
    $ tranche reserve list
    $ tranche reserve remove 4f0c2a1b
    """


@command.command("add", cls=TrancheCommand)
@click.option("--gpus", "count", metavar="N", type=click.IntRange(1), help="Number of GPUs to reserve.")
@click.option("--gpu", "named", metavar="GPU", multiple=True, help="GPU to reserve, by index or UUID; repeatable.")
@click.option(
    "--from",
    "begins",
    metavar="TIME",
    required=True,
    help="Start, in this machine's time zone: '2026-12-01 09:00', or the next 18:30 or 'mon 9:00'.",
)
@click.option("--for", "length", metavar="TIME", required=True, help="Length, such as 6h.")
@click.option("--user", "users", metavar="USER", multiple=True, help="User, by name or uid; repeatable.")
@click.option("--group", "groups", metavar="GROUP", multiple=True, help="Group; repeatable.")
@click.pass_obj
def add(
    settings: Settings,
    /,
    count: int | None,
    named: tuple[str, ...],
    begins: str,
    length: str,
    users: tuple[str, ...],
    groups: tuple[str, ...],
) -> None:
    """Reserve GPUs for a given period.

    Before the reservation starts, its GPUs accept only commands that reach their time limit by then. After the start,
    they accept commands only from the named users and groups. If you name none, the GPUs are reserved for
    maintenance and accept no commands. A reservation never stops a running command.

    If none of its users has held or waited for a GPU within 15 minutes of the start, Tranche ends the reservation. With
    --gpus, Tranche chooses the GPUs that will be free first.

    \b
    $ tranche reserve add --gpus 4 --from '2026-12-01 09:00' --for 6h --user ann
    $ tranche reserve add --gpu 0 --gpu 1 --from 'mon 9:00' --for 2d --group students
    $ tranche reserve add --gpu 3 --from 18:30 --for 2h
    """
    if (count is None) is not bool(named):
        raise UsageError("give either --gpus or --gpu", hint="for example: --gpus 4, or: --gpu 0 --gpu 1")
    now = time.time()
    start, seconds = parse_moment(begins, now), round(parse_duration(length))
    if seconds < 1:
        raise UsageError(f"a reservation of '{length}' is shorter than a second", hint="for example: --for 6h")
    wanted = named_users(users, groups, check=True)
    names = ", ".join(f"group {name.removeprefix(GROUP)}" if is_group(key) else name for key, name in wanted.items())
    with open_host(settings) as host:
        node = look_at(host).node
        uuids = {gpu_named(text, node).uuid for text in named}
        new, view = policy_change.reserve(
            host,
            Reservation(host.new_id(), tuple(uuids), start, start + seconds, tuple(wanted), names, user_name()),
            count or len(uuids),
        )
        Queue(host).ring_all()
    say(f"reservation {new.id}: {_gpus(new, view.node)} {new}; it starts in {age(start - now)}")
    called = names_of(view.allocations, (), process_owners(view.allocations)).called
    for share, free in in_the_way(view, new):
        until = "has no time limit" if math.isinf(free) else f"may last until {said(free)}"
        on = ranges({view.node.gpu(each.gpu_uuid).index for each in share.grants if each.gpu_uuid in new.gpu_uuids})
        warn(f"{called.get(share.id, share.id)} on GPU {on} {until}")
    for gpu, other in others_on(view, new):
        warn(f"{gpu.label} is also {other}; commands on it in the earlier reservation need a time limit")
    for gpu, process in strangers(view, new.gpu_uuids):
        warn(f"{process} on {gpu.label} was started without Tranche")


@command.command("list", cls=TrancheCommand)
@output_option()
@click.pass_obj
def list_(settings: Settings, /, output: str) -> None:
    """List reservations, earliest start first.

    \b
    $ tranche reserve list
    """
    with open_host(settings, reading=True) as host:
        view = look_at(host)
    found = [each for each in view.reservations if not over(view, each)]
    if output == "json":
        print_json("ReservationList", reservations=[reservation_document(each, view) for each in found])
        return
    rows = [
        (
            each.id,
            _gpus(each, view.node).removeprefix("GPU ").removeprefix("GPUs "),
            each.names or "maintenance",
            each.hours,
            f"in {age(each.begins - view.time)}" if view.time < each.begins else "started",
            each.user,
        )
        for each in found
    ]
    print_table(("ID", "GPUS", "FOR", "TIME", "STARTS", "MADE BY"), rows)


@command.command("remove", cls=TrancheCommand)
@click.argument("reservation_id", metavar="ID")
@click.pass_obj
def remove(settings: Settings, /, reservation_id: str) -> None:
    """Remove a reservation.

    ID is the id of a reservation; a unique prefix is enough.

    \b
    $ tranche reserve remove 4f0c2a1b
    """
    with open_host(settings) as host:
        found = policy_change.unreserve(host, reservation_id, user=user_name())
        Queue(host).ring_all()
    say(f"reservation {found} removed")


def _gpus(reservation: Reservation, node: NodeState) -> str:
    """`GPU 3`, `GPUs 0-3`; GPUs that the machine no longer shows by UUID."""
    indexes = {gpu.uuid: gpu.index for gpu in node}
    gone = [uuid for uuid in reservation.gpu_uuids if uuid not in indexes]
    there = ranges(indexes[uuid] for uuid in reservation.gpu_uuids if uuid in indexes)
    return f"GPU{'s' if len(reservation.gpu_uuids) > 1 else ''} {', '.join(filter(None, (there, *gone)))}"
