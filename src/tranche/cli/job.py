"""`tranche job`: the jobs that were submitted to a cluster."""

from __future__ import annotations

import click

from tranche.cli.jobs import delete, describe, kubectl, listing, logs, wait
from tranche.cli.runtime import TrancheGroup


@click.group("job", cls=TrancheGroup)
def command() -> None:
    """List, inspect and delete the jobs that tranche submit created.

    \b
    $ tranche job list
    $ tranche job logs -f train-x7k2p
    $ tranche job exec train-x7k2p -- nvidia-smi
    """


for each in (
    listing.command,
    describe.command,
    logs.command,
    kubectl.attach,
    kubectl.execute,
    wait.command,
    delete.command,
):
    command.add_command(each)
