"""Jobs on an API server: all of a job is created or nothing, and everything is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.jobs.jobs_server import JOBS, PODS, TEMPLATES, ended, put_job, put_pod
from tests.kubernetes.jobs.test_manifest import REQUEST, wish
from tranche.core.errors import (
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRejected,
    TrancheError,
)
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.claims.spec import claim_spec
from tranche.kubernetes.jobs.client import JobClient, follow_logs
from tranche.kubernetes.jobs.job import JobPod, JobStatus, KubeJob
from tranche.kubernetes.jobs.manifest import objects_of

Result = TypeVar("Result")
FORBIDDEN = (403, {"message": "no"})
NO_NAMESPACE = (404, {"message": 'namespaces "team-a" not found'})


def on_server(act: Callable[[FakeApiServer, JobClient], Awaitable[Result]]) -> Result:
    async def acted() -> Result:
        async with api_server() as server:
            connection = ApiConnection(ApiServer(server.url))
            try:
                return await act(server, JobClient(connection))
            finally:
                await connection.aclose()

    return asyncio.run(acted())


def created(server: FakeApiServer, client: JobClient) -> Awaitable[KubeJob]:
    return client.create(*objects_of(wish(), claim_spec(REQUEST)))


def test_a_job_owns_its_template() -> None:
    async def act(server: FakeApiServer, client: JobClient) -> None:
        job = await created(server, client)
        (owner,) = server.objects[f"{TEMPLATES}/train"]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Job", job.uid)
        assert server.objects[f"{JOBS}/train"]["metadata"]["uid"] == job.uid

    on_server(act)


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (("POST", "/jobs"), KubernetesForbidden),
        (("POST", "/resourceclaimtemplates"), KubernetesForbidden),
    ],
)
def test_what_may_not_be_created_leaves_nothing(refusal: tuple[str, str], error: type[TrancheError]) -> None:
    async def act(server: FakeApiServer, client: JobClient) -> None:
        server.refusals[refusal] = FORBIDDEN
        with pytest.raises(error):
            await created(server, client)
        assert server.objects == {}

    on_server(act)


def test_a_template_is_taken_back_when_its_job_is_refused_after_all() -> None:
    async def act(server: FakeApiServer, client: JobClient) -> None:
        template, job = objects_of(wish(), claim_spec(REQUEST))
        asked = client._connection.ask

        async def full(what: str, method: str, path: str, *arguments: object, **more: object) -> object:
            if method == "POST" and path == JOBS and not more.get("query"):
                server.failures.append((403, {"message": "exceeded quota"}))
            return await asked(what, method, path, *arguments, **more)  # type: ignore[arg-type]

        client._connection.ask = full  # type: ignore[assignment, method-assign]
        with pytest.raises(KubernetesForbidden, match="exceeded quota"):
            await client.create(template, job)
        assert server.objects == {}

    on_server(act)


def test_a_name_that_is_taken_is_said_and_nothing_is_touched() -> None:
    async def act(server: FakeApiServer, client: JobClient) -> None:
        put_job(server)
        server.refusals["POST", "/jobs"] = (409, {"reason": "AlreadyExists", "message": "already exists"})
        with pytest.raises(KubernetesRejected, match="job 'train' already exists in namespace team-a"):
            await created(server, client)
        assert list(server.objects) == [f"{JOBS}/train"]

    on_server(act)


def test_a_namespace_that_is_not_there_is_said() -> None:
    async def act(server: FakeApiServer, client: JobClient) -> None:
        server.refusals["POST", "/jobs"] = NO_NAMESPACE
        with pytest.raises(KubernetesNotFound, match="namespace 'team-a' not found"):
            await created(server, client)

    on_server(act)


@pytest.mark.parametrize(
    ("status", "spec", "word"),
    [
        ({}, {}, JobStatus.PENDING),
        ({"active": 2, "ready": 0}, {}, JobStatus.PENDING),
        ({"active": 2, "ready": 1}, {}, JobStatus.RUNNING),
        ({}, {"suspend": True}, JobStatus.SUSPENDED),
        (ended("Complete", succeeded=1), {}, JobStatus.SUCCEEDED),
        (ended("Failed", failed=1), {}, JobStatus.FAILED),
    ],
)
def test_the_status_of_a_job(status: dict[str, object], spec: dict[str, object], word: JobStatus) -> None:
    async def act(server: FakeApiServer, client: JobClient) -> None:
        put_job(server, status=status, **spec)
        (job,) = await client.jobs("team-a")
        assert (job.status, job.request) == (word, "--gpu-memory 4Gi")
        assert job.message == ("because" if word is JobStatus.FAILED else "")

    on_server(act)


def test_jobs_of_others_are_neither_listed_nor_deleted() -> None:
    async def act(server: FakeApiServer, client: JobClient) -> None:
        server.put(f"{JOBS}/other", {"spec": {}})
        assert await client.jobs(None) == ()
        with pytest.raises(KubernetesNotFound, match="was not created by tranche submit"):
            await client.delete("team-a", "other")
        assert list(server.objects) == [f"{JOBS}/other"]

    on_server(act)


def test_a_job_is_deleted_with_its_template_also_when_one_of_them_is_gone() -> None:
    async def act(server: FakeApiServer, client: JobClient) -> None:
        await created(server, client)
        await client.delete("team-a", "train")
        assert server.objects == {}
        server.put(f"{TEMPLATES}/train", {"spec": {}})
        await client.delete("team-a", "train")
        assert server.objects == {}
        put_job(server)
        with pytest.raises(KubernetesNotFound) as unknown:
            await client.delete("team-a", "tran")
        assert "did you mean 'train'?" in unknown.value.hint

    on_server(act)


def test_logs_are_followed_from_the_first_pod_to_the_end_of_the_job() -> None:
    async def act(server: FakeApiServer, client: JobClient) -> list[tuple[str, str]]:
        seen: list[tuple[str, str]] = []
        put_job(server)
        put_pod(server, "train-0", phase="Pending", waiting={"reason": "ContainerCreating"})
        server.pages = {f"{PODS}/train-0/log": "one\ntwo\n", f"{PODS}/train-1/log": "three\n"}
        printed = asyncio.Event()

        def show(pod: JobPod, line: str) -> None:
            seen.append((pod.name, line))
            if len(seen) == 2:
                printed.set()

        following = asyncio.create_task(follow_logs(client, "team-a", "train", show, tail=None))
        put_pod(server, "train-0")
        await printed.wait()
        put_pod(server, "train-1", phase="Succeeded", terminated={"exitCode": 0})
        put_job(server, status=ended("Complete", succeeded=2))
        await following
        return seen

    assert on_server(act) == [("train-0", "one"), ("train-0", "two"), ("train-1", "three")]


def test_a_pod_whose_container_never_started_has_no_log() -> None:
    async def act(server: FakeApiServer, client: JobClient) -> list[str]:
        put_job(server, status=ended("Failed"))
        put_pod(server, "train-0", phase="Failed", waiting={"reason": "ContainerCreating"})
        server.refusals["GET", "/train-0/log"] = (400, {"message": "container is waiting to start"})
        seen: list[str] = []
        await follow_logs(client, "team-a", "train", lambda _, line: seen.append(line), tail=3)
        assert server.requests[-1].query == {"follow": "true", "tailLines": "3"}
        return seen

    assert on_server(act) == []
