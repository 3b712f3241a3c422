"""`tranche job describe`: a job, its pods, and why they wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tranche.cli.jobs.explaining import print_explanation
from tranche.cli.jobs.target import asked_as_person, target_options
from tranche.cli.output import print_json, print_table, show, warn
from tranche.cli.runtime import TrancheCommand, output_option

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.jobs.description import JobSummary
    from tranche.kubernetes.jobs.job import JobPod

_COLUMNS = ("POD", "PHASE", "NODE", "HAS", "SINCE")
_WORDS = 5
"""For how many pods the kubelet's word is shown."""


@click.command("describe", cls=TrancheCommand, short_help="Show a job, its pods and why they wait.")
@click.argument("name")
@target_options
@output_option()
def command(name: str, namespace: str | None, kubeconfig: str | None, output: str) -> None:
    """Show a job, its pods and why they wait.

    The output lists the share of each pod, and explains why the first waiting pod waits. For other pods, use tranche
    explain with pod/NAME.
    """

    async def ask(api: ApiConnection, where: str) -> JobSummary:
        from tranche.kubernetes.jobs.description import describe_job

        return await describe_job(api, where, name)

    found = asked_as_person(kubeconfig, namespace, ask)
    if output == "json":
        from tranche.kubernetes.jobs.description import description_document

        print_json("JobDescription", **description_document(found))
        return
    _print(found)


def _print(found: JobSummary) -> None:
    job = found.job
    show(f"job        {job}")
    show(f"request    {job.request}")
    show(f"status     {job.status}{f': {job.message}' if job.message else ''}")
    show(f"pods       {job.ready} running, {job.succeeded} of {job.completions} done, {job.failed} failed")
    if found.pods:
        show()
        print_table(_COLUMNS, [_row(each, found) for each in found.pods])
    for pod, word in [(each, each.kubelets_word) for each in found.pods if each.kubelets_word][:_WORDS]:
        show(f"{pod.name}: {word}")
    for what in found.unread if not found.waiting else ():
        warn(f"your account may not read {what}: the shares of its pods may be missing")
    for explanation in found.waiting[:1]:
        more = len(found.waiting) - 1
        show()
        show(f"why {explanation.pod} waits{f' ({more} more wait)' if more else ''}:")
        print_explanation(explanation)
    if found.events:
        show()
        show("events:")
        for event in found.events:
            show(f"  {event}")


def _row(pod: JobPod, found: JobSummary) -> tuple[object, ...]:
    state = pod.phase if not pod.waiting else f"{pod.phase} ({pod.waiting})"
    if pod.exit_code:
        state = f"{pod.phase} (exit code {pod.exit_code})"
    return (pod.name, state, pod.node, "; ".join(found.has(pod)), pod.created)
