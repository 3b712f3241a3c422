"""Templates of claims: one for each content, made when needed, removed when unused, safe under several webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_agent import kubeconfig_in
from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.waiting import patiently
from tranche.core.errors import KubernetesForbidden, KubernetesUnavailable
from tranche.core.request import parse_request
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.claims.spec import claim_spec
from tranche.kubernetes.webhook.injection import TEMPLATE_LABEL, USED_ANNOTATION, template_name
from tranche.kubernetes.webhook.template_store import (
    KEPT,
    MADE_SECONDS,
    MOST_MADE,
    NOTE_SECONDS,
    TemplateStore,
    remove_templates,
)

FOLDER = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates"
REQUEST = parse_request(gpu_memory="4Gi")
DEVICES = claim_spec(REQUEST).devices
NAME = template_name(DEVICES)


class Clocks:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 22, 6, tzinfo=UTC)
        self.clock = 0.0
        self.connections: list[ApiConnection] = []

    def go(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.clock += seconds

    def store(self, server: FakeApiServer) -> TemplateStore:
        self.connections.append(ApiConnection(ApiServer(server.url), now=lambda: self.now))
        return TemplateStore(self.connections[-1], clock=lambda: self.clock)


def run(check: Callable[[FakeApiServer, Clocks], Any]) -> None:
    async def with_server() -> None:
        async with api_server() as server:
            clocks = Clocks()
            try:
                await check(server, clocks)
            finally:
                for connection in clocks.connections:
                    await connection.aclose()

    asyncio.run(patiently(with_server()))


async def ensured(store: TemplateStore) -> str:
    return await store.ensure("team", DEVICES, str(REQUEST))


def pod_of(server: FakeApiServer, name: str, phase: str) -> None:
    server.put(
        f"/api/v1/namespaces/team/pods/{name}",
        {"metadata": {"labels": {TEMPLATE_LABEL: NAME}}, "status": {"phase": phase}},
    )


def used(server: FakeApiServer) -> str:
    return str(server.objects[f"{FOLDER}/{NAME}"]["metadata"]["annotations"][USED_ANNOTATION])


def test_a_template_is_made_once_and_each_use_is_noted_every_few_minutes() -> None:
    async def check(server: FakeApiServer, clocks: Clocks) -> None:
        one, two = clocks.store(server), clocks.store(server)
        assert await ensured(one) == NAME
        made = server.objects[f"{FOLDER}/{NAME}"]
        assert made["spec"]["spec"]["devices"] == DEVICES
        assert made["metadata"]["annotations"]["tranche.dev/request"] == "--gpu-memory 4Gi"
        clocks.go(NOTE_SECONDS - 1)
        await ensured(one)
        assert [seen.method for seen in server.requests] == ["POST", "POST"]
        await ensured(two)
        assert used(server) == "2026-11-22T06:04:59Z"
        clocks.go(1)
        await ensured(one)
        assert used(server) == "2026-11-22T06:05:00Z"
        assert [seen.method for seen in server.requests][2:] == ["POST", "PUT", "POST", "PUT"]
        assert await one.request_of("team", NAME) == "--gpu-memory 4Gi"
        assert await one.request_of("other", NAME) == await one.request_of("team", "tranche-0") == ""

    run(check)


def test_a_template_that_someone_removed_a_moment_after_its_use_is_made_again() -> None:
    async def check(server: FakeApiServer, clocks: Clocks) -> None:
        store = clocks.store(server)
        await ensured(store)
        server.delete(f"{FOLDER}/{NAME}")  # or its namespace was deleted, and made anew
        clocks.go(1)
        await ensured(store)
        assert f"{FOLDER}/{NAME}" in server.objects

    run(check)


def test_one_that_is_removed_while_it_is_noted_is_made_again() -> None:
    async def check(server: FakeApiServer, clocks: Clocks) -> None:
        store = clocks.store(server)
        server.failures = [(409, {}), (404, {})]
        assert await ensured(store) == NAME
        assert f"{FOLDER}/{NAME}" in server.objects

    run(check)


def test_a_refusal_of_the_api_server_is_told_and_not_remembered_as_success() -> None:
    async def check(server: FakeApiServer, clocks: Clocks) -> None:
        store = clocks.store(server)
        server.failures = [(403, {"message": "exceeded quota: claims"})]
        with pytest.raises(KubernetesForbidden, match="exceeded quota"):
            await ensured(store)
        assert await ensured(store) == NAME

    run(check)


def test_nobody_has_more_than_a_hundred_made_in_a_minute_and_those_that_are_there_serve_on() -> None:
    async def check(server: FakeApiServer, clocks: Clocks) -> None:
        store = clocks.store(server)
        for number in range(MOST_MADE):
            await store.ensure("team", {"number": number}, "")
        with pytest.raises(KubernetesUnavailable, match="the limit of 100 new templates per minute"):
            await ensured(store)
        assert len(server.objects) == MOST_MADE
        await store.ensure("team", {"number": 0}, "")
        clocks.go(MADE_SECONDS)
        assert await ensured(store) == NAME
        # Of the hundred before it, those that were made longer ago than a minute do not count any more.
        clocks.go(MADE_SECONDS)
        await clocks.store(server).ensure("team", DEVICES, str(REQUEST))

    run(check)


def test_what_nobody_needs_goes_after_an_hour_and_what_somebody_needs_stays() -> None:
    async def check(server: FakeApiServer, clocks: Clocks) -> None:
        store = clocks.store(server)
        await ensured(store)
        server.put(f"{FOLDER}/mine", {"metadata": {"annotations": {USED_ANNOTATION: "2020-01-01T00:00:00Z"}}})
        server.put(f"{FOLDER}/odd", {"metadata": {"labels": {TEMPLATE_LABEL: "odd"}}})
        pod_of(server, "waiting", "Pending")
        clocks.go(KEPT.total_seconds() - 1)
        assert await store.sweep() == 0
        clocks.go(1)
        assert await store.sweep() == 0
        pod_of(server, "waiting", "Succeeded")
        assert await store.sweep() == 1
        # What is not ours, or says nothing that can be read, is nobody's to remove.
        assert sorted(path.rsplit("/", 1)[1] for path in server.objects if path.startswith(FOLDER)) == ["mine", "odd"]
        # It is known to be gone: the next pod gets it anew.
        await ensured(store)
        assert f"{FOLDER}/{NAME}" in server.objects

    run(check)


def test_what_waits_in_a_queue_keeps_its_template_for_days() -> None:
    async def check(server: FakeApiServer, clocks: Clocks) -> None:
        store, workload = clocks.store(server), "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/job-train"
        await ensured(store)
        claims = [{"name": "own", "resourceClaimName": "a"}, {"name": "tranche", "resourceClaimTemplateName": NAME}]
        spec = {"podSets": [{"name": "main"}, {"name": "worker", "template": {"spec": {"resourceClaims": claims}}}]}
        waits = {"conditions": [{"type": "QuotaReserved", "status": "False"}, {"type": "Finished", "status": "False"}]}
        server.put(workload, {"spec": spec, "status": waits})
        clocks.go(72 * KEPT.total_seconds())
        assert await store.sweep() == 0
        server.put(workload, {"spec": spec, "status": {"conditions": [{"type": "Finished", "status": "True"}]}})
        server.refusals["GET", "/workloads"] = (403, {"message": "you may not"})
        with pytest.raises(KubernetesForbidden):  # what may wait is unknown, and so nothing is removed
            await store.sweep()
        server.refusals["GET", "/workloads"] = (404, {"message": "no such kind"})
        assert await store.sweep() == 1

    run(check)


def test_at_the_end_everything_goes_that_no_pod_needs_however_late_it_was_used(tmp_path: Path) -> None:
    async def check(server: FakeApiServer, clocks: Clocks) -> None:
        await ensured(clocks.store(server))
        other = claim_spec(parse_request(gpu_memory="8Gi")).devices
        await clocks.store(server).ensure("team", other, "")
        server.put(f"{FOLDER}/odd", {"metadata": {"labels": {TEMPLATE_LABEL: "odd"}}})
        pod_of(server, "waiting", "Pending")
        said: list[str] = []

        async def leave() -> None:
            await asyncio.to_thread(remove_templates, str(kubeconfig_in(tmp_path, server.url)), {}, said.append)

        # The clock of whoever removes may be behind that of whoever used it.
        await leave()
        assert said == ["deleted 1 claim template"]
        left = sorted(path.rsplit("/", 1)[1] for path in server.objects if path.startswith(FOLDER))
        assert left == sorted([NAME, "odd"])
        server.refusals["GET", "/resourceclaimtemplates"] = (403, {"message": "you may not"})
        await leave()
        assert said[1:] == ["cannot delete claim templates: cannot list claim templates: you may not"]
        server.refusals["GET", "/resourceclaimtemplates"] = (404, {"message": "no such kind"})
        await leave()
        assert len(said) == 2

    run(check)


def test_a_use_between_a_look_and_a_removal_keeps_it() -> None:
    async def check(server: FakeApiServer, clocks: Clocks) -> None:
        one, two = clocks.store(server), clocks.store(server)
        await ensured(one)
        clocks.go(2 * KEPT.total_seconds())
        listed = one._list

        async def list_and_then_a_use(path: str, what: str, **query: str) -> Any:
            found = await listed(path, what, **query)
            if "templates" in path:
                await ensured(two)
            return found

        one._list = list_and_then_a_use  # type: ignore[method-assign]
        assert await one.sweep() == 0
        assert f"{FOLDER}/{NAME}" in server.objects
        assert used(server) == "2026-11-22T08:00:00Z"

    run(check)
