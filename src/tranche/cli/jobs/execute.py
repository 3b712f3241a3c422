"""`tranche job exec`: a further command in a job's container, in its share."""

from __future__ import annotations

import click

from tranche.cli.jobs.kubectl import hand_to_kubectl
from tranche.cli.jobs.target import target_options
from tranche.cli.runtime import TrancheCommand


@click.command("exec", cls=TrancheCommand, short_help="A further command in the share of a job.")
@click.argument("name")
@target_options
@click.option("--pod", metavar="NAME", help="That pod; else the first that runs.")
@click.argument("command_line", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED, required=True)
def command(
    name: str, namespace: str | None, kubeconfig: str | None, pod: str | None, command_line: tuple[str, ...]
) -> None:
    """Run a further command in the container of a running job; it uses the job's share.

    exec needs kubectl.

    \b
    $ tranche job exec train-x7k2p -- nvidia-smi
    """
    hand_to_kubectl("exec", name, pod, namespace, kubeconfig, command_line)
