"""`tranche job logs`: what a job's pods print."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tranche.cli.jobs.target import asked_as_person, target_options
from tranche.cli.output import say
from tranche.cli.runtime import TrancheCommand
from tranche.core.errors import KubernetesNotFound

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.jobs.job import JobPod


@click.command("logs", cls=TrancheCommand)
@click.argument("name")
@target_options
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the job ends.")
@click.option("--pod", metavar="NAME", help="Print the logs of this pod only. Default: all pods.")
@click.option(
    "--tail", metavar="N", type=click.IntRange(0), help="Print the last N lines of each pod. Default: all lines."
)
def command(
    name: str, namespace: str | None, kubeconfig: str | None, follow: bool, pod: str | None, tail: int | None
) -> None:
    """Print the logs of a job.

    If the job has several pods, each line begins with the name of its pod. With --follow, the command also waits for
    pods that have not started. If a container did not start or was killed, stderr gives the kubelet's reason.
    """

    async def ask(api: ApiConnection, where: str) -> None:
        from tranche.kubernetes.jobs.client import JobClient, follow_logs, print_logs

        client = JobClient(api)
        job = await client.job(where, name)
        pods = await client.pods(where, name)
        if pod is not None and pod not in {each.name for each in pods}:
            names = ", ".join(each.name for each in pods) or "none"
            raise KubernetesNotFound(f"job {job} has no pod '{pod}'", hint=f"its pods: {names}")
        several = pod is None and job.completions > 1

        def show(each: JobPod, line: str) -> None:
            if pod in (None, each.name):
                click.echo(f"[{each.name}] {line}" if several else line)

        if follow:
            await follow_logs(client, where, name, show, random=random.random, tail=tail)
            _say_why([each for each in await client.pods(where, name) if pod in (None, each.name)])
            return
        begun = [each for each in pods if each.started or each.over]
        if not begun:
            say(f"no pod of job {job} has started; see why: tranche job describe {name} -n {where}")
        await print_logs(client, [each for each in begun if pod in (None, each.name)], show, tail=tail)
        _say_why([each for each in pods if pod in (None, each.name)])

    asked_as_person(kubeconfig, namespace, ask)


def _say_why(pods: Sequence[JobPod]) -> None:
    for each in pods:
        if each.kubelets_word:
            say(f"{each.name}: {each.kubelets_word}")
