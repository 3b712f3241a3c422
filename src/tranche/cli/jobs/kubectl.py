"""`tranche job attach` and `tranche job exec`: a terminal for a job's command, or a further command in its share.

Both hand the terminal to kubectl, which speaks the API server's protocols for it.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from tranche.cli.jobs.target import asked_as_person, target_options
from tranche.cli.runtime import TrancheCommand
from tranche.core.errors import CommandNotFound, KubernetesNotFound

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.jobs.job import JobPod

_pod_option = click.option("--pod", metavar="NAME", help="Pod of the job. Default: the first that runs.")


@click.command("attach", cls=TrancheCommand, short_help="Attach the terminal to a running job.")
@click.argument("name")
@target_options
@_pod_option
def attach(name: str, namespace: str | None, kubeconfig: str | None, pod: str | None) -> None:
    """Attach the terminal to the command of a running job.

    The command reads input only if the job was submitted with --interactive. The program kubectl must be installed.
    """
    _hand_to_kubectl("attach", name, pod, namespace, kubeconfig)


@click.command("exec", cls=TrancheCommand, short_help="Run another command on the share of a job.")
@click.argument("name")
@target_options
@_pod_option
@click.argument("command_line", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED, required=True)
def execute(
    name: str, namespace: str | None, kubeconfig: str | None, pod: str | None, command_line: tuple[str, ...]
) -> None:
    """Run another command in the container of a running job.

    The command uses the share of the job. The program kubectl must be installed.

    \b
    $ tranche job exec train-x7k2p -- nvidia-smi
    """
    _hand_to_kubectl("exec", name, pod, namespace, kubeconfig, command_line)


def _hand_to_kubectl(
    verb: str, name: str, pod: str | None, namespace: str | None, kubeconfig: str | None, command: tuple[str, ...] = ()
) -> None:
    """Become `kubectl attach` or `kubectl exec` for a running pod of the job.

    Raises:
        CommandNotFound: there is no kubectl.
        KubernetesNotFound: no pod of the job runs.
    """
    program = shutil.which("kubectl")
    if program is None:
        raise CommandNotFound(
            f"'tranche job {verb}' needs kubectl, which is not on PATH",
            hint=f"install kubectl; without it, tranche job logs -f {name} shows the job's output",
        )
    chosen = asked_as_person(kubeconfig, namespace, lambda api, where: _running_pod(api, where, name, pod))
    words = [program, *(["--kubeconfig", kubeconfig] if kubeconfig else []), "-n", chosen.namespace, verb]
    if verb == "attach":
        words += ["--stdin", "--tty"] if chosen.interactive else []
    else:
        words += ["--stdin", *(["--tty"] if sys.stdin.isatty() else [])]
    words += [chosen.name, "-c", "main", *(["--", *command] if command else [])]
    sys.stdout.flush()
    os.execv(program, words)


async def _running_pod(api: ApiConnection, namespace: str, name: str, wanted: str | None) -> JobPod:
    from tranche.kubernetes.jobs.client import JobClient

    client = JobClient(api)
    job = await client.job(namespace, name)
    pods = await client.pods(namespace, name)
    running = [each for each in pods if each.started and not each.over and wanted in (None, each.name)]
    if not running:
        which = f"pod '{wanted}' of job {job} does not run" if wanted else f"no pod of job {job} runs"
        raise KubernetesNotFound(which, hint=f"wait with: tranche job wait {name} --for running -n {namespace}")
    return running[0]
