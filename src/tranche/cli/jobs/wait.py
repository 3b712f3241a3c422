"""`tranche job wait`: until a job runs, or has ended."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from tranche.cli.duration import TIMEOUT_HELP, DurationType
from tranche.cli.jobs.target import asked_as_person, target_options
from tranche.cli.output import say
from tranche.cli.runtime import TrancheCommand
from tranche.core.errors import JobFailed, WaitTimeout

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.jobs.job import KubeJob


@click.command("wait", cls=TrancheCommand)
@click.argument("name")
@target_options
@click.option(
    "--for",
    "state",
    type=click.Choice(["completion", "running"]),
    default="completion",
    show_default=True,
    help="Wait until all pods have succeeded, or until one pod runs.",
)
@click.option("--timeout", metavar="TIME", type=DurationType(), help=TIMEOUT_HELP)
def command(name: str, namespace: str | None, kubeconfig: str | None, state: str, timeout: float | None) -> None:
    """Wait until a job succeeds or runs.

    The exit code is 48 if the job fails or is deleted, and 70 after the timeout.
    """

    async def ask(api: ApiConnection, where: str) -> str:
        from tranche.kubernetes.jobs.client import JobClient

        client = JobClient(api)
        seen = await client.job(where, name)  # says at once when there is none, or the person may not look
        try:
            async with asyncio.timeout(timeout), aclosing(client.watch_job(where, name, random.random)) as changes:
                async for job in changes:
                    if job is None:
                        raise JobFailed(f"job {seen} was deleted", hint="list jobs with: tranche job list")
                    seen = job
                    if word := _reached(job, state):
                        return word
        except TimeoutError as error:
            raise WaitTimeout(
                f"job {seen} is {seen.status} after {timeout:g} s", hint=f"why: tranche job describe {name} -n {where}"
            ) from error
        raise AssertionError("a watch lasts until it is closed")

    say(asked_as_person(kubeconfig, namespace, ask))


def _reached(job: KubeJob, state: str) -> str:
    """What there is to say when the wait is over; "" while it is not."""
    from tranche.kubernetes.jobs.job import JobStatus

    if job.status is JobStatus.FAILED:
        raise JobFailed(
            f"job {job} has failed: {job.message}", hint=f"see: tranche job logs {job.name} -n {job.namespace}"
        )
    if job.status is JobStatus.SUCCEEDED:
        return f"job {job} has succeeded"
    if state == "running" and job.status is JobStatus.RUNNING:
        return f"job {job} runs"
    return ""
