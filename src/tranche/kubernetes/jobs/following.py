"""The logs of a job's pods, as they are or as they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from tranche.core.errors import KubernetesNotFound, KubernetesRejected
from tranche.kubernetes.jobs.client import JobClient
from tranche.kubernetes.jobs.job import JobPod

Print = Callable[[JobPod, str], None]
"""What becomes of a line of a pod's log."""


async def print_logs(client: JobClient, pods: Sequence[JobPod], show: Print, *, tail: int | None) -> None:
    """The logs of these pods, one after the other, as far as they are written."""
    for pod in pods:
        await _copy(client, pod, show, follow=False, tail=tail)


async def follow_logs(
    client: JobClient, namespace: str, name: str, show: Print, *, random: Callable[[], float], tail: int | None
) -> None:
    """The logs of the job's pods as they are written, those of pods that come later as well, until the job is over."""
    copies: dict[str, asyncio.Task[None]] = {}

    def begin(pods: Sequence[JobPod]) -> None:
        for pod in pods:
            if pod.name not in copies and (pod.started or pod.over):
                copies[pod.name] = asyncio.create_task(_copy(client, pod, show, follow=True, tail=tail))

    async def watch() -> None:
        async with aclosing(client.watch_pods(namespace, name, random)) as changes:
            async for pods in changes:
                begin(pods)

    watching = asyncio.create_task(watch())
    try:
        async with aclosing(client.watch_job(namespace, name, random)) as changes:
            async for job in changes:
                if job is None or job.status.over:
                    break
        begin(await client.pods(namespace, name))
        await asyncio.gather(*copies.values())
    finally:
        for task in (watching, *copies.values()):
            task.cancel()


async def _copy(client: JobClient, pod: JobPod, show: Print, *, follow: bool, tail: int | None) -> None:
    try:
        async with aclosing(client.log(pod, follow=follow, tail=tail)) as lines:
            async for line in lines:
                show(pod, line)
    except (KubernetesNotFound, KubernetesRejected):
        return  # the pod is gone, or its container never started: there is nothing to show
