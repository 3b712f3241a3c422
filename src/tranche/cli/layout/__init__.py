"""`tranche layout`: declared layouts, in the v1 format that mig-parted reads."""

from __future__ import annotations

import click

from tranche.cli.layout.change import apply, plan, restore
from tranche.cli.layout.look import assert_layout, checkpoint, export, generate
from tranche.cli.runtime import TrancheGroup


@click.group("layout", cls=TrancheGroup)
def command() -> None:
    """Plan, apply, check and save the layouts of GPUs.

    A layout declares which GPUs are in MIG mode and how many slices of each profile they have. A layout file uses the
    v1 format of mig-parted. Without a file, the commands use the layouts that Tranche generates for this machine (see:
    tranche layout generate).

    \b
    $ tranche layout apply -c all-balanced
    $ tranche layout plan -f layouts.yaml -c nightly
    $ tranche layout assert -f layouts.yaml -c nightly
    """


for subcommand in (plan, apply, assert_layout, export, generate, checkpoint, restore):
    command.add_command(subcommand)
