"""`tranche job attach` and `tranche job exec` hand a terminal to kubectl, which speaks the API server's protocols for it."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from tranche.cli.jobs.target import asked_as_person
from tranche.core.errors import CommandNotFound, KubernetesNotFound

if TYPE_CHECKING:
    from tranche.kubernetes.api.connection import ApiConnection
    from tranche.kubernetes.jobs.job import JobPod


def hand_to_kubectl(
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
            hint=f"install kubectl; without it, tranche job logs -f {name} shows what the job prints",
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
