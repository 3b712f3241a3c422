"""`tranche extend`: give a running command more time."""

from __future__ import annotations

import os
import sys

import click

from tranche.cli import completion
from tranche.cli.output import say, warn
from tranche.cli.runtime import Settings, TrancheCommand, full_id, open_host, socket_of_service
from tranche.core.request import parse_time_limit
from tranche.local.time_limit import extend


@click.command(cls=TrancheCommand)
@click.argument("allocation_id", metavar="ID", shell_complete=completion.ids)
@click.argument("time", metavar="TIME")
@click.pass_obj
def command(settings: Settings, /, allocation_id: str, time: str) -> None:
    """Give a running command more time.

    ID is the id of an allocation with a time limit; a unique prefix is enough. Tranche adds TIME to the limit. Users
    can extend their own commands while no request is waiting for the GPU, but not beyond the start of a reservation.
    Root can extend any command.

    \b
    $ tranche extend 5d8fb96b 2h
    """
    more = parse_time_limit(time)
    socket = socket_of_service(settings)
    if socket is not None:
        from tranche.local.client import ServiceClient
        from tranche.node.state.connection import connect  # most machines have no service

        with open_host(settings, reading=True) as host:
            allocation_id = full_id(host, allocation_id)
        sys.exit(ServiceClient(connect(socket), say, warn).extend(allocation_id, time))
    with open_host(settings, changes_own_share=allocation_id) as host:
        say(extend(host, full_id(host, allocation_id), more, os.getuid()))
