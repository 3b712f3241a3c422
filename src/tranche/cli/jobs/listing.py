"""`tranche job list`: the jobs that were submitted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tranche.cli.jobs.target import asked_as_person, target_options
from tranche.cli.output import print_json, print_table, say
from tranche.cli.runtime import TrancheCommand, output_option
from tranche.documents import describe

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.jobs.job import KubeJob

_COLUMNS = ("NAME", "REQUEST", "STATUS", "RUNNING", "DONE", "AGE")


@click.command("list", cls=TrancheCommand)
@target_options
@click.option("-A", "--all-namespaces", is_flag=True, help="List the jobs of all namespaces.")
@output_option()
def command(namespace: str | None, kubeconfig: str | None, all_namespaces: bool, output: str) -> None:
    """List the jobs that tranche submit created, oldest first.

    RUNNING is the number of pods with a running container. DONE is the number of pods that succeeded, out of all.
    """

    async def ask(api: ApiConnection, where: str) -> tuple[tuple[KubeJob, ...], str]:
        from tranche.kubernetes.jobs.client import JobClient

        return await JobClient(api).jobs(None if all_namespaces else where), where

    jobs, where = asked_as_person(kubeconfig, namespace, ask)
    if output == "json":
        from tranche.kubernetes.jobs.job import job_document

        print_json("JobList", jobs=[job_document(each) for each in jobs])
        return
    if not jobs:
        say("no jobs in any namespace" if all_namespaces else f"no jobs in namespace {where}")
    now = datetime.now(UTC)
    rows = [_row(each, now) for each in jobs]
    if all_namespaces:
        print_table(("NAMESPACE", *_COLUMNS), [(job.namespace, *row) for job, row in zip(jobs, rows, strict=True)])
    else:
        print_table(_COLUMNS, rows)


def _row(job: KubeJob, now: datetime) -> tuple[object, ...]:
    age = "" if job.created is None else describe.age(max((now - job.created).total_seconds(), 0))
    return (job.name, job.request, job.status, job.ready, f"{job.succeeded}/{job.completions}", age)
