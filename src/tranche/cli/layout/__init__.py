"""`tranche layout`: declared layouts, in the v1 format that mig-parted reads."""

from __future__ import annotations

import click

from tranche.cli.layout.change import apply, plan, restore
from tranche.cli.layout.look import assert_layout, checkpoint, export, generate
from tranche.cli.runtime import TrancheGroup


@click.group("layout", cls=TrancheGroup)
def command() -> None:
    """Cut the GPUs as a layout declares.

    A layout names for every GPU, or for some, whether MIG mode is on and how many slices of which profile there are.
    Layouts stand in a file in mig-parted's v1 format; without a file, the layouts generated for this machine's own GPUs
    are meant (see: tranche layout generate).

    \b
    $ tranche layout apply -c all-balanced
    $ tranche layout plan -f layouts.yaml -c nightly
    $ tranche layout assert -f layouts.yaml -c nightly
    """


for subcommand in (plan, apply, assert_layout, export, generate, checkpoint, restore):
    command.add_command(subcommand)
