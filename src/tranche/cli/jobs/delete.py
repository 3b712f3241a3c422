"""`tranche job delete`: jobs with their pods and claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tranche.cli.jobs.target import asked_as_person, target_options
from tranche.cli.output import fail, say
from tranche.cli.runtime import TrancheCommand
from tranche.core.errors import KubernetesForbidden, KubernetesNotFound, KubernetesRejected

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection


@click.command("delete", cls=TrancheCommand)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@target_options
def command(names: tuple[str, ...], namespace: str | None, kubeconfig: str | None) -> None:
    """Delete jobs with their pods and claims.

    Running commands receive SIGTERM, and SIGKILL after 30 seconds. Jobs that tranche submit did not create stay. If one
    job cannot be deleted, the others still are, and the exit code is that of the first error.
    """

    async def ask(api: ApiConnection, where: str) -> None:
        from tranche.kubernetes.jobs.client import JobClient

        failures = []
        for name in dict.fromkeys(names):
            try:
                await JobClient(api).delete(where, name)
                say(f"deleted {where}/{name}")
            except (KubernetesForbidden, KubernetesNotFound, KubernetesRejected) as error:
                failures.append(error)
        for each in failures[1:]:
            fail(each.message, each.hint)
        if failures:
            raise failures[0]

    asked_as_person(kubeconfig, namespace, ask)
