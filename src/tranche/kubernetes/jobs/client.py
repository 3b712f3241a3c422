"""Jobs on one API server, and the logs of their pods, with the caller's rights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from tranche.core.errors import KubernetesNotFound, KubernetesRejected, TrancheError
from tranche.core.spelling import did_you_mean
from tranche.kubernetes.api.connection import ApiConnection, ApiResponse
from tranche.kubernetes.api.informer import ObjectSource, named
from tranche.kubernetes.claims.vocabulary import JOB_LABEL
from tranche.kubernetes.jobs.job import JobPod, KubeJob, decode_job, decode_job_pod, in_order

_DRY_RUN = {"dryRun": "All"}
_BACKGROUND = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
_NOT_OURS = "was not created by tranche submit"


class JobClient:
    """What a user does with jobs.

    Each call raises KubernetesUnavailable when trying again may help, and KubernetesForbidden, KubernetesNotFound or
    KubernetesRejected when it does not.
    """

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def create(self, template: Mapping[str, Any] | None, job: Mapping[str, Any]) -> KubeJob:
        """Create both, or neither: if the Job is refused, the template is removed again. The Job owns the template.

        A job of a cluster without claims has no template.
        """
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        if template is None:
            return decode_job(await self._post(f"submit {namespace}/{name}", _jobs(namespace), job))
        await self._post(f"submit {namespace}/{name}", _jobs(namespace), job, _DRY_RUN)
        made = await self._post(f"create the claim template {namespace}/{name}", _templates(namespace), template)
        try:
            created = decode_job(await self._post(f"submit {namespace}/{name}", _jobs(namespace), job))
        except TrancheError:
            await self._take_back(namespace, name, str(made["metadata"]["uid"]))
            raise
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": created.uid}
        what, path = (
            f"make its job the owner of the claim template {namespace}/{name}",
            f"{_templates(namespace)}/{name}",
        )
        patch = {"metadata": {"uid": made["metadata"]["uid"], "ownerReferences": [owner]}}
        # Without an owner, the template outlives a Job that others delete, which does no harm.
        await self._connection.ask(what, "PATCH", path, patch, content_type="application/merge-patch+json")
        return created

    async def jobs(self, namespace: str | None) -> tuple[KubeJob, ...]:
        """Every submitted job, oldest first; of all namespaces for None."""
        path = "/apis/batch/v1/jobs" if namespace is None else _jobs(namespace)
        where = "in all namespaces" if namespace is None else f"in namespace {namespace}"
        answer = await self._connection.ask(f"list jobs {where}", "GET", path, query={"labelSelector": JOB_LABEL})
        found = [decode_job(raw) for raw in answer.accepted().get("items") or ()]
        return tuple(sorted(found, key=lambda each: (str(each.created), each.namespace, each.name)))

    async def job(self, namespace: str, name: str) -> KubeJob:
        """That job; KubernetesNotFound, with the existing jobs, if there is none."""
        answer = await self._connection.ask(f"read job {namespace}/{name}", "GET", f"{_jobs(namespace)}/{name}")
        found = answer.unless(404)
        if found is None:
            raise await self._unknown(namespace, name)
        if JOB_LABEL not in (found["metadata"].get("labels") or {}):
            raise KubernetesNotFound(f"Job {namespace}/{name} {_NOT_OURS}", hint="manage it with kubectl")
        return decode_job(found)

    async def pods(self, namespace: str, name: str) -> tuple[JobPod, ...]:
        """The pods of that job, by index, then oldest first."""
        query = {"labelSelector": f"{JOB_LABEL}={name}"}
        path = f"/api/v1/namespaces/{namespace}/pods"
        answer = await self._connection.ask(f"list the pods of job {namespace}/{name}", "GET", path, query=query)
        return in_order(decode_job_pod(raw) for raw in answer.accepted().get("items") or ())

    async def delete(self, namespace: str, name: str) -> None:
        """Delete the job with its pods, and its template; KubernetesNotFound when there is neither."""
        await self._check_own(namespace, name)
        gone = 0
        for what, path in ((f"job {namespace}/{name}", _jobs(namespace)), ("its template", _templates(namespace))):
            answer = await self._connection.ask(f"delete {what}", "DELETE", f"{path}/{name}", _BACKGROUND)
            gone += answer.unless(404) is None
        if gone == 2:
            raise await self._unknown(namespace, name)

    def log(self, pod: JobPod, *, follow: bool, tail: int | None = None) -> AsyncGenerator[str, None]:
        """The lines of a pod's log; with `follow`, until the pod ends."""
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/log"
        query = ({"follow": "true"} if follow else {}) | ({} if tail is None else {"tailLines": str(tail)})
        return self._connection.lines(f"read the log of pod {pod.name}", path, query)

    def watch_job(self, namespace: str, name: str) -> AsyncGenerator[KubeJob | None, None]:
        """The job now, then after each change; None while there is none. It recovers from failures and lasts until closed."""
        source = ObjectSource(self._connection, f"job {namespace}/{name}", _jobs(namespace), named(name), decode_job)
        return source.versions()

    async def watch_pods(self, namespace: str, name: str) -> AsyncGenerator[tuple[JobPod, ...], None]:
        """The job's pods now, then after each change. It recovers from failures and lasts until closed."""
        label, path = f"pods of job {namespace}/{name}", f"/api/v1/namespaces/{namespace}/pods"
        source = ObjectSource(self._connection, label, path, {"labelSelector": f"{JOB_LABEL}={name}"}, decode_job_pod)
        async with aclosing(source.snapshots()) as snapshots:
            async for items in snapshots:
                yield in_order(items)

    async def _post(
        self, what: str, path: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        answer = await self._connection.ask(what, "POST", path, body, query=query)
        return _explained(answer, body)

    async def _take_back(self, namespace: str, name: str, uid: str) -> None:
        """Delete only the template that was just made. Its own failure is ignored: the user sees the refusal that led here."""
        options = {**_BACKGROUND, "preconditions": {"uid": uid}}
        try:
            path = f"{_templates(namespace)}/{name}"
            await self._connection.ask(f"delete the claim template {namespace}/{name}", "DELETE", path, options)
        except TrancheError:
            return

    async def _check_own(self, namespace: str, name: str) -> None:
        try:
            await self.job(namespace, name)
        except KubernetesNotFound as error:
            if _NOT_OURS in error.message:
                raise

    async def _unknown(self, namespace: str, name: str) -> TrancheError:
        try:
            names = [each.name for each in await self.jobs(namespace)]
        except TrancheError:
            names = []
        meant = did_you_mean(name, names)
        return KubernetesNotFound(
            f"job '{name}' not found in namespace {namespace}",
            hint=f"{meant}list jobs with: tranche job list (add -A for all namespaces)",
        )


def _explained(answer: ApiResponse, body: Mapping[str, Any]) -> Mapping[str, Any]:
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    if answer.status == 409 and answer.body.get("reason") == "AlreadyExists":
        kind = "job" if body["kind"] == "Job" else "claim template"
        raise KubernetesRejected(
            f"{kind} '{name}' already exists in namespace {namespace}",
            hint=f"choose another --name, or delete the job: tranche job delete {name} -n {namespace}",
        )
    if answer.status == 404 and f'namespaces "{namespace}"' in answer.message:
        raise KubernetesNotFound(f"namespace '{namespace}' not found", hint="choose another namespace with -n")
    return answer.accepted()


def _jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def _templates(namespace: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"


Print = Callable[[JobPod, str], None]
"""Shows a line of a pod's log."""


async def print_logs(client: JobClient, pods: Sequence[JobPod], show: Print, *, tail: int | None) -> None:
    """The logs of these pods, one after the other, as far as they are written."""
    for pod in pods:
        await _copy(client, pod, show, follow=False, tail=tail)


async def follow_logs(client: JobClient, namespace: str, name: str, show: Print, *, tail: int | None) -> None:
    """The logs of the job's pods as they are written, including later pods, until the job is over."""
    copies: dict[str, asyncio.Task[None]] = {}

    def begin(pods: Sequence[JobPod]) -> None:
        for pod in pods:
            if pod.name not in copies and (pod.started or pod.over):
                copies[pod.name] = asyncio.create_task(_copy(client, pod, show, follow=True, tail=tail))

    async def watch() -> None:
        async with aclosing(client.watch_pods(namespace, name)) as changes:
            async for pods in changes:
                begin(pods)

    watching = asyncio.create_task(watch())
    try:
        async with aclosing(client.watch_job(namespace, name)) as changes:
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
