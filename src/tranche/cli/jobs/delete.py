"""`tranche delete`: jobs with their pods and claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tranche.cli.jobs.target import asked_as_person, target_options
from tranche.cli.output import say
from tranche.cli.settings import TrancheCommand

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection


@click.command("delete", cls=TrancheCommand)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@target_options
def command(names: tuple[str, ...], namespace: str | None, kubeconfig: str | None) -> None:
    """Delete jobs, with their pods and claims. Running commands get SIGTERM, and are killed after 30 seconds.

    delete leaves alone what tranche submit did not make.
    """

    async def ask(api: ApiConnection, where: str) -> None:
        from tranche.kubernetes.jobs.client import JobClient

        for name in dict.fromkeys(names):
            await JobClient(api).delete(where, name)
            say(f"deleted {where}/{name}")

    asked_as_person(kubeconfig, namespace, ask)
