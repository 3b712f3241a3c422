"""`tranche job`: the jobs that were submitted to a cluster, and why their pods wait.

A terminal in a job's container is handed to kubectl, which speaks the API server's protocols for it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from tranche.cli.options import TIMEOUT_HELP, DurationType, asked_as_person, target_options
from tranche.cli.output import fail, print_json, print_table, say, show, warn
from tranche.cli.runtime import Settings, TrancheGroup, output_option
from tranche.core.errors import (
    CommandNotFound,
    JobFailed,
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRejected,
    TrancheError,
    UsageError,
    WaitTimeout,
)
from tranche.documents import describe

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.jobs.client import JobClient
    from tranche.kubernetes.jobs.description import JobSummary
    from tranche.kubernetes.jobs.job import JobPod, KubeJob
    from tranche.local.jobs import JobStore, MachineJob

Result = TypeVar("Result")

_JOB_COLUMNS = ("NAME", "REQUEST", "STATUS", "RUNNING", "DONE", "AGE")
_POD_COLUMNS = ("POD", "PHASE", "NODE", "HAS", "SINCE")
_WORDS = 5
"""For how many pods the kubelet's word is shown."""

_pod_option = click.option("--pod", metavar="NAME", help="Pod to use. Default: the first running pod.")


@click.group("job", cls=TrancheGroup)
def command() -> None:
    """List, inspect and delete the jobs that tranche submit created.

    The subcommands list, describe, logs, wait and delete also accept your detached runs on this machine (tranche run
    --detach). They use the cluster if you have no detached run of that name, or if you add -n, -A or --kubeconfig. Only detached
    runs can restart.

    \b
    $ tranche job list
    $ tranche job logs -f train-x7k2p
    $ tranche job exec train-x7k2p -- nvidia-smi
    """


def _asked(kubeconfig: str | None, namespace: str | None, ask: Callable[[JobClient, str], Awaitable[Result]]) -> Result:
    """What `ask` finds out about the jobs of the chosen namespace."""

    async def of_jobs(api: ApiConnection, where: str) -> Result:
        from tranche.kubernetes.jobs.client import JobClient

        return await ask(JobClient(api), where)

    return asked_as_person(kubeconfig, namespace, of_jobs)


def _own_jobs(*of_cluster: object) -> JobStore | None:
    """This user's detached runs here, unless an option names a cluster; None without one."""
    if any(of_cluster):
        return None
    from tranche.cli import detached

    return detached.own_jobs()


def _own_job(name: str, *of_cluster: object) -> tuple[JobStore, MachineJob] | None:
    """A detached run, unless the cluster is to be asked; UsageError if there is no such run, and no cluster."""
    store = _own_jobs(*of_cluster)
    job = None if store is None else store.find(name)
    if store is not None and job is not None:
        return store, job
    if not any(of_cluster) and not _cluster_is_known():
        raise UsageError(
            f"you have no detached run named {name} on this machine",
            hint="list your detached runs with: tranche job list",
        )
    if store is not None:
        say(f"you have no detached run named {name} here; asking the cluster")
    return None


def _cluster_is_known() -> bool:
    """Whether the environment or the home names a cluster."""
    named = os.environ.get("KUBECONFIG") or os.environ.get("KUBERNETES_SERVICE_HOST")
    return bool(named) or os.access(Path.home() / ".kube" / "config", os.R_OK)


@command.command("list")
@target_options
@click.option("-A", "--all-namespaces", is_flag=True, help="List the jobs in all namespaces.")
@output_option()
def list_(namespace: str | None, kubeconfig: str | None, all_namespaces: bool, output: str) -> None:
    """List the jobs that tranche submit created, oldest first.

    RUNNING is the number of pods with a running container. DONE is the number of pods that succeeded, out of the total.
    """
    store = _own_jobs(namespace, kubeconfig, all_namespaces)
    of_cluster = namespace or kubeconfig or all_namespaces
    if store is not None or not (of_cluster or _cluster_is_known()):
        from tranche.cli import detached

        detached.list_jobs(() if store is None else store.jobs(), output)
        return

    async def ask(client: JobClient, where: str) -> tuple[tuple[KubeJob, ...], str]:
        return await client.jobs(None if all_namespaces else where), where

    jobs, where = _asked(kubeconfig, namespace, ask)
    if output == "json":
        from tranche.kubernetes.jobs.job import job_document

        print_json("JobList", jobs=[job_document(each) for each in jobs])
        return
    if not jobs:
        say("no jobs in any namespace" if all_namespaces else f"no jobs in namespace {where}")
    now = datetime.now(UTC)
    rows = [_job_row(each, now) for each in jobs]
    if all_namespaces:
        print_table(("NAMESPACE", *_JOB_COLUMNS), [(job.namespace, *row) for job, row in zip(jobs, rows, strict=True)])
    else:
        print_table(_JOB_COLUMNS, rows)


def _job_row(job: KubeJob, now: datetime) -> tuple[object, ...]:
    age = "" if job.created is None else describe.age(max((now - job.created).total_seconds(), 0))
    return (job.name, job.request, job.status, job.ready, f"{job.succeeded}/{job.completions}", age)


@command.command("describe", short_help="Show a job, its pods, and why pods are waiting.")
@click.argument("name")
@target_options
@output_option()
def describe_(name: str, namespace: str | None, kubeconfig: str | None, output: str) -> None:
    """Show a job, its pods, and why pods are waiting.

    The output lists each pod's share, and explains why the first pending pod is waiting. For another pod, use tranche
    explain pod/NAME. A detached run has no pods, so the output shows its command, folder and share.
    """
    if (own := _own_job(name, namespace, kubeconfig)) is not None:
        from tranche.cli import detached

        detached.describe_job(*own, output)
        return

    async def ask(api: ApiConnection, where: str) -> JobSummary:
        from tranche.kubernetes.jobs.description import describe_job

        return await describe_job(api, where, name)

    found = asked_as_person(kubeconfig, namespace, ask)
    if output == "json":
        from tranche.kubernetes.jobs.description import description_document

        print_json("JobDescription", **description_document(found))
    else:
        print_description(found)


def print_description(found: JobSummary) -> None:
    """A job, its pods, and why the first of them waits."""
    from tranche.cli.explain import print_explanation

    job = found.job
    show(f"job        {job}")
    show(f"request    {job.request}")
    show(f"status     {job.status}{f': {job.message}' if job.message else ''}")
    show(f"pods       {job.ready} running, {job.succeeded} of {job.completions} done, {job.failed} failed")
    if found.pods:
        show()
        print_table(_POD_COLUMNS, [_pod_row(each, found) for each in found.pods])
    for pod, word in [(each, each.kubelets_word) for each in found.pods if each.kubelets_word][:_WORDS]:
        show(f"{pod.name}: {word}")
    for what in found.unread if not found.waiting else ():
        warn(f"your account has no permission to read {what}: this description may be incomplete")
    for explanation in found.waiting[:1]:
        more = len(found.waiting) - 1
        show()
        show(f"why {explanation.pod} is waiting{f' (as are {more} more)' if more else ''}:")
        print_explanation(explanation)
    if found.events:
        show()
        show("events:")
        for event in found.events:
            show(f"  {event}")


def _pod_row(pod: JobPod, found: JobSummary) -> tuple[object, ...]:
    state = pod.phase if not pod.waiting else f"{pod.phase} ({pod.waiting})"
    if pod.exit_code:
        state = f"{pod.phase} (exit code {pod.exit_code})"
    return (pod.name, state, pod.node, "; ".join(found.has(pod)), pod.created)


@command.command()
@click.argument("name")
@target_options
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the job ends.")
@click.option("--pod", metavar="NAME", help="Print only this pod's logs. Default: all pods.")
@click.option("--tail", metavar="N", type=click.IntRange(0), help="Print each pod's last N lines. Default: all lines.")
def logs(
    name: str, namespace: str | None, kubeconfig: str | None, follow: bool, pod: str | None, tail: int | None
) -> None:
    """Print a job's logs.

    If the job has several pods, each line begins with the pod's name. With --follow, the command also waits for pods
    that have not started yet. If a container did not start or was killed, stderr shows the kubelet's reason.
    """
    if (found := _own_job(name, namespace, kubeconfig, pod)) is not None:
        from tranche.cli import detached

        detached.print_log(*found, follow=follow, tail=tail)
        return

    async def ask(client: JobClient, where: str) -> None:
        from tranche.kubernetes.jobs.client import follow_logs, print_logs

        job = await client.job(where, name)
        pods = await client.pods(where, name)
        if pod is not None and pod not in {each.name for each in pods}:
            names = ", ".join(each.name for each in pods) or "none"
            raise KubernetesNotFound(f"job {job} has no pod '{pod}'", hint=f"its pods: {names}")
        several = pod is None and job.completions > 1

        def print_line(each: JobPod, line: str) -> None:
            if pod in (None, each.name):
                click.echo(f"[{each.name}] {line}" if several else line)

        if follow:
            await follow_logs(client, where, name, print_line, tail=tail)
            pods = await client.pods(where, name)
        else:
            begun = [each for each in pods if each.started or each.over]
            if not begun:
                say(f"no pod of job {job} has started; see why: tranche job describe {name} -n {where}")
            await print_logs(client, [each for each in begun if pod in (None, each.name)], print_line, tail=tail)
        for each in pods:
            if pod in (None, each.name) and each.kubelets_word:
                say(f"{each.name}: {each.kubelets_word}")

    _asked(kubeconfig, namespace, ask)


@command.command(short_help="Attach the terminal to a running job.")
@click.argument("name")
@target_options
@_pod_option
def attach(name: str, namespace: str | None, kubeconfig: str | None, pod: str | None) -> None:
    """Attach the terminal to a running job's command.

    The command reads input only if you submitted the job with --interactive. It requires kubectl.
    """
    _hand_to_kubectl("attach", name, pod, namespace, kubeconfig)


@command.command("exec", short_help="Run another command on a job's share.")
@click.argument("name")
@target_options
@_pod_option
@click.argument("command_line", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED, required=True)
def execute(
    name: str, namespace: str | None, kubeconfig: str | None, pod: str | None, command_line: tuple[str, ...]
) -> None:
    """Run another command in a running job's container.

    The command uses the job's share. It requires kubectl.

    \b
    $ tranche job exec train-x7k2p -- nvidia-smi
    """
    _hand_to_kubectl("exec", name, pod, namespace, kubeconfig, command_line)


def _hand_to_kubectl(
    verb: str, name: str, pod: str | None, namespace: str | None, kubeconfig: str | None, words: Sequence[str] = ()
) -> None:
    """Become `kubectl attach` or `kubectl exec` for a running pod of the job.

    Raises:
        CommandNotFound: there is no kubectl.
        KubernetesNotFound: no pod of the job runs.
    """
    store = _own_jobs(pod, namespace, kubeconfig)
    if store is not None and store.find(name) is not None:
        raise UsageError(
            f"{name} is a detached run on this machine, but tranche job {verb} works only with jobs in a cluster",
            hint=f"see its output with: tranche job logs {name}; see its share with: tranche ps",
        )
    program = shutil.which("kubectl")
    if program is None:
        raise CommandNotFound(
            f"'tranche job {verb}' needs kubectl, which is not on PATH",
            hint=f"install kubectl; without it, tranche job logs -f {name} shows the job's output",
        )

    async def running_pod(client: JobClient, where: str) -> JobPod:
        job = await client.job(where, name)
        pods = await client.pods(where, name)
        running = [each for each in pods if each.started and not each.over and pod in (None, each.name)]
        if not running:
            which = f"pod '{pod}' of job {job} is not running" if pod else f"no pod of job {job} is running"
            raise KubernetesNotFound(which, hint=f"wait with: tranche job wait {name} --for running -n {where}")
        return running[0]

    chosen = _asked(kubeconfig, namespace, running_pod)
    line = [program, *(["--kubeconfig", kubeconfig] if kubeconfig else []), "-n", chosen.namespace, verb]
    if verb == "attach":
        line += ["--stdin", "--tty"] if chosen.interactive else []
    else:
        line += ["--stdin", *(["--tty"] if sys.stdin.isatty() else [])]
    line += [chosen.name, "-c", "main", *(["--", *words] if words else [])]
    sys.stdout.flush()
    os.execv(program, line)


@command.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@target_options
@click.option(
    "--for",
    "state",
    type=click.Choice(["completion", "running"]),
    default="completion",
    show_default=True,
    help="Wait until all pods have succeeded, or until one pod is running.",
)
@click.option("--timeout", metavar="TIME", type=DurationType(), help=TIMEOUT_HELP)
def wait(
    names: tuple[str, ...], namespace: str | None, kubeconfig: str | None, state: str, timeout: float | None
) -> None:
    """Wait until all the named jobs have completed or are running.

    If a job in a cluster fails or is deleted, the exit code is 48; after the timeout, it is 70. For a finished detached
    run, it is the command's exit code. With several jobs, it is the first non-zero code, in the order in which you name
    the jobs.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    first = 0
    for name in dict.fromkeys(names):
        try:
            code = _wait_for(name, namespace, kubeconfig, state, deadline)
        except TrancheError as error:
            fail(error.message, error.hint)
            code = error.exit_code
        first = first or code
    sys.exit(first)


def _wait_for(name: str, namespace: str | None, kubeconfig: str | None, state: str, deadline: float | None) -> int:
    """Wait until a job has completed or runs; returns the exit code. JobFailed, or WaitTimeout at the deadline."""
    if (found := _own_job(name, namespace, kubeconfig)) is not None:
        from tranche.cli import detached

        return detached.wait_for(*found, state, deadline)

    async def ask(client: JobClient, where: str) -> str:
        seen = await client.job(where, name)  # says at once when there is none, or the person may not look
        left = None if deadline is None else deadline - time.monotonic()
        try:
            async with asyncio.timeout(left), aclosing(client.watch_job(where, name)) as changes:
                async for job in changes:
                    if job is None:
                        raise JobFailed(f"job {seen} was deleted", hint="list jobs with: tranche job list")
                    seen = job
                    if word := _reached(job, state):
                        return word
        except TimeoutError as error:
            raise WaitTimeout(
                f"job {seen} is still {seen.status} at the timeout",
                hint=f"see why with: tranche job describe {name} -n {where}",
            ) from error
        raise AssertionError("a watch lasts until it is closed")

    say(_asked(kubeconfig, namespace, ask))
    return 0


def _reached(job: KubeJob, state: str) -> str:
    """What there is to say when the wait is over; "" while it is not."""
    from tranche.kubernetes.jobs.job import JobStatus

    if job.status is JobStatus.FAILED:
        raise JobFailed(
            f"job {job} has failed: {job.message}",
            hint=f"see the output with: tranche job logs {job.name} -n {job.namespace}",
        )
    if job.status is JobStatus.SUCCEEDED:
        return f"job {job} has succeeded"
    if state == "running" and job.status is JobStatus.RUNNING:
        return f"job {job} is running"
    return ""


@command.command()
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--lost", is_flag=True, help="Restart lost runs, which were killed or ended by a reboot.")
@click.pass_obj
def restart(settings: Settings, /, names: tuple[str, ...], lost: bool) -> None:
    """Restart your detached runs on this machine.

    A run that has ended or is lost starts again with the same command, request, folder and environment. Tranche appends
    its output to the previous output. With --lost, the command waits up to two minutes for the service. To restart lost
    runs after each reboot, add `@reboot tranche job restart --lost` to your crontab.

    \b
    $ tranche job restart exp7
    $ tranche job restart --lost
    """
    if bool(names) is lost:
        raise UsageError("give either names or --lost", hint="list your detached runs with: tranche job list")
    from tranche.cli.detached import restart
    from tranche.cli.run import run_command

    sys.exit(restart(settings, names, run_command, lost=lost))


@command.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@target_options
@click.pass_obj
def delete(settings: Settings, /, names: tuple[str, ...], namespace: str | None, kubeconfig: str | None) -> None:
    """Delete jobs with their pods and claims.

    Running commands receive SIGTERM, and SIGKILL after 30 seconds. The command deletes only jobs that tranche submit
    created. If processes still hold the share of a detached run that has ended, the command keeps the run. If one job
    cannot be deleted, the command still deletes the others, and exits with the first error's exit code.
    """
    failures: list[TrancheError] = []
    of_cluster = []
    for name in dict.fromkeys(names):
        try:
            if (found := _own_job(name, namespace, kubeconfig)) is None:
                of_cluster.append(name)
                continue
            from tranche.cli import detached

            detached.delete_job(settings, *found)
        except TrancheError as error:
            failures.append(error)

    async def ask(client: JobClient, where: str) -> None:
        for name in of_cluster:
            try:
                await client.delete(where, name)
                say(f"deleted {where}/{name}")
            except (KubernetesForbidden, KubernetesNotFound, KubernetesRejected) as error:
                failures.append(error)

    if of_cluster:
        try:
            _asked(kubeconfig, namespace, ask)
        except TrancheError as error:
            failures.append(error)
    for each in failures[1:]:
        fail(each.message, each.hint)
    if failures:
        raise failures[0]
