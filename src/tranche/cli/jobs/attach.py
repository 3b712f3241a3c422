"""`tranche job attach`: this terminal as that of a job's command."""

from __future__ import annotations

import click

from tranche.cli.jobs.kubectl import hand_to_kubectl
from tranche.cli.jobs.target import target_options
from tranche.cli.runtime import TrancheCommand


@click.command("attach", cls=TrancheCommand, short_help="A terminal for a running job.")
@click.argument("name")
@target_options
@click.option("--pod", metavar="NAME", help="That pod; else the first that runs.")
def command(name: str, namespace: str | None, kubeconfig: str | None, pod: str | None) -> None:
    """Attach this terminal to the command of a running job, which takes input where it was submitted with --interactive.

    attach needs kubectl.
    """
    hand_to_kubectl("attach", name, pod, namespace, kubeconfig)
