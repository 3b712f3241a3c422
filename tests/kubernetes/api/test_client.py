"""The client against a small API server on a loopback socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tranche.core.errors import (
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRejected,
    KubernetesUnavailable,
    TrancheError,
)
from tranche.kubernetes.api import connection
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.informer import ObjectSource
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.objects import (
    ConditionStatus,
    EvictionStatus,
    KubeEventType,
    KubeNode,
    NodeCondition,
    PodRef,
)

NODE = "/api/v1/nodes/n1"
PATIENCE = 30.0


class Clock:
    """A time that stands still until it is set."""

    def __init__(self) -> None:
        self.moment = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.moment


@asynccontextmanager
async def connected(server: FakeApiServer, now: Callable[[], datetime] | None = None) -> AsyncIterator[KubeClient]:
    # Without pauses: what is tested is what happens, not how fast.
    connection = ApiConnection(
        ApiServer(server.url), random=lambda: 0.0, sleep=lambda _: asyncio.sleep(0.001), now=now or Clock()
    )
    try:
        yield KubeClient(connection)
    finally:
        await connection.aclose()


def served(test: Callable[[FakeApiServer, KubeClient], Coroutine[Any, Any, None]]) -> None:
    """Run the test with a server and a client of it."""

    async def run() -> None:
        async with api_server() as server, connected(server) as client, asyncio.timeout(PATIENCE):
            server.put(NODE, {"metadata": {"uid": "u1", "labels": {"a": "1", "b": "2"}}})
            await test(server, client)

    asyncio.run(run())


def test_a_node_is_read_with_what_tranche_looks_at() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok"}]
        counts = {"capacity": {"nvidia.com/gpu": "9"}, "allocatable": {"nvidia.com/gpu": "8"}}
        status = {"conditions": conditions, "nodeInfo": {"osImage": "Some Linux 9"}, **counts}
        meta = {"uid": "u1", "labels": {"a": "1"}, "annotations": {"b": "2"}}
        server.put(NODE, {"metadata": meta, "spec": {"unschedulable": True}, "status": status})
        ready = NodeCondition("Ready", ConditionStatus.TRUE, "KubeletReady", "ok")
        node = KubeNode("n1", "u1", {"a": "1"}, {"b": "2"}, True, (ready,), os_image="Some Linux 9")
        expected = replace(node, capacity=counts["capacity"], allocatable=counts["allocatable"])
        assert await client.get_node("n1") == expected

    served(test)


def test_labels_are_set_and_removed_and_others_stay() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        node = await client.patch_node_metadata("n1", labels={"a": None, "c": "3"}, annotations={"x": "y"})
        assert (node.labels, node.annotations) == ({"b": "2", "c": "3"}, {"x": "y"})

    served(test)


def test_cordon_and_uncordon() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        await client.set_unschedulable("n1", True)
        assert (await client.get_node("n1")).unschedulable
        await client.set_unschedulable("n1", False)
        assert not (await client.get_node("n1")).unschedulable

    served(test)


def test_a_condition_keeps_its_transition_time_until_its_status_changes_and_others_stay() -> None:
    async def run() -> None:
        clock = Clock()
        async with api_server() as server, connected(server, clock) as client, asyncio.timeout(PATIENCE):
            server.put(NODE, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})

            def ours() -> dict[str, str]:
                conditions = {c["type"]: c for c in server.objects[NODE]["status"]["conditions"]}
                assert set(conditions) == {"Ready", "Mig"}
                found: dict[str, str] = conditions["Mig"]
                return found

            failed = NodeCondition("Mig", ConditionStatus.FALSE, "Busy", "first")
            await client.set_node_condition("n1", failed)
            first = ours()["lastTransitionTime"]
            assert first == "2030-01-02T03:04:05Z"
            clock.moment = clock.moment.replace(hour=4)
            await client.set_node_condition("n1", NodeCondition("Mig", ConditionStatus.FALSE, "Busy", "second"))
            assert (ours()["message"], ours()["lastTransitionTime"]) == ("second", first)
            await client.set_node_condition("n1", NodeCondition("Mig", ConditionStatus.TRUE, "Done", ""))
            assert ours()["lastTransitionTime"] == "2030-01-02T04:04:05Z"
            before = len([seen for seen in server.requests if seen.method == "PATCH"])
            await client.set_node_condition("n1", NodeCondition("Mig", ConditionStatus.TRUE, "Done", ""))
            assert len([seen for seen in server.requests if seen.method == "PATCH"]) == before

    asyncio.run(run())


def test_the_same_event_again_counts_up() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        node = await client.get_node("n1")
        for _ in range(3):
            await client.create_node_event(node, KubeEventType.WARNING, "MigFailed", "no room")
        await client.create_node_event(node, KubeEventType.WARNING, "MigFailed", "x" * 5000)
        events = [content for path, content in server.objects.items() if "/events/" in path]
        assert sorted((event["count"], len(event["message"])) for event in events) == [(1, 1024), (3, len("no room"))]
        assert all(event["involvedObject"]["uid"] == "u1" and event["type"] == "Warning" for event in events)

    served(test)


def test_pods_tell_who_controls_them_and_whether_they_run() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        owner = {"kind": "DaemonSet", "controller": True}
        meta = {"ownerReferences": [{"kind": "X"}, owner], "deletionTimestamp": "2030-01-01T00:00:00Z"}
        server.put("/api/v1/namespaces/a/pods/p", {"metadata": meta, "status": {"phase": "Running"}})
        server.put("/api/v1/namespaces/b/pods/q", {"status": {"phase": "Failed"}})
        first, second = await client.list_pods_on_node("n1")
        assert server.requests[-1].query == {"fieldSelector": "spec.nodeName=n1"}
        assert (first.ref, first.owner_kind, first.terminating, first.finished) == (
            PodRef("a", "p"),
            "DaemonSet",
            True,
            False,
        )
        assert (second.ref, second.owner_kind, second.terminating, second.finished) == (
            PodRef("b", "q"),
            "",
            False,
            True,
        )

    served(test)


def test_an_eviction_is_accepted_blocked_by_a_budget_or_too_late() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        server.put("/api/v1/namespaces/a/pods/p", {"metadata": {"uid": "u1"}})
        budget = {"message": "budget 'b' allows none", "details": {"causes": [{"reason": "DisruptionBudget"}]}}
        server.failures.append((429, budget))
        blocked = await client.evict_pod(PodRef("a", "p"), "u1")
        assert (blocked.outcome, blocked.message) == (EvictionStatus.BLOCKED, "budget 'b' allows none")
        with pytest.raises(KubernetesRejected, match="precondition"):
            await client.evict_pod(PodRef("a", "p"), "its predecessor")
        assert "/api/v1/namespaces/a/pods/p" in server.objects
        assert (await client.evict_pod(PodRef("a", "p"), "u1")).outcome is EvictionStatus.ACCEPTED
        assert (await client.evict_pod(PodRef("a", "p"), "u1")).outcome is EvictionStatus.GONE
        server.failures.append((429, {"message": "too many requests"}))
        with pytest.raises(KubernetesUnavailable):
            await client.evict_pod(PodRef("a", "p"), "u1")

    served(test)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, KubernetesForbidden),
        (403, KubernetesForbidden),
        (404, KubernetesNotFound),
        (409, KubernetesRejected),
        (422, KubernetesRejected),
        (429, KubernetesUnavailable),
        (500, KubernetesUnavailable),
        (503, KubernetesUnavailable),
    ],
)
def test_a_refusal_is_the_error_that_says_whether_trying_again_helps(status: int, error: type[TrancheError]) -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        server.failures.append((status, {"message": "because"}))
        with pytest.raises(error, match="cannot read node n1: because"):
            await client.get_node("n1")

    served(test)


def test_a_connection_that_was_closed_while_idle_is_not_an_error() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        await client.get_node("n1")
        await server.stop()
        await server.start()
        assert (await client.get_node("n1")).name == "n1"

    served(test)


def test_an_api_server_that_is_not_there_is_unavailable() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        await server.stop()
        try:
            with pytest.raises(KubernetesUnavailable, match="does not answer"):
                await client.get_node("n1")
        finally:
            await server.start()

    served(test)


def test_a_watch_shows_changes_absence_and_return() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        path = "/api/v1/namespaces/ns/configmaps/c"
        seen = client.watch_config_map("ns", "c")
        assert await anext(seen) is None
        server.put("/api/v1/namespaces/ns/configmaps/other", {"data": {"x": "y"}})
        server.put(path, {"data": {"a": "1"}})
        assert await anext(seen) == {"a": "1"}
        server.delete(path)
        assert await anext(seen) is None
        server.put(path, {"data": {"a": "2"}})
        assert await anext(seen) == {"a": "2"}

    served(test)


async def labels_of_next(seen: AsyncIterator[KubeNode | None]) -> dict[str, str]:
    node = await anext(seen)
    assert node is not None
    return dict(node.labels)


def test_the_pods_of_a_node_are_followed() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        seen = client.watch_pods_on_node("n1")
        server.put("/api/v1/namespaces/a/pods/p", {"status": {"phase": "Running"}})
        assert [pod.ref for pod in await anext(seen)] == [PodRef("a", "p")]
        server.put("/api/v1/namespaces/b/pods/p", {"status": {"phase": "Running"}})
        assert [pod.ref for pod in await anext(seen)] == [PodRef("a", "p"), PodRef("b", "p")]
        server.delete("/api/v1/namespaces/a/pods/p")
        assert [pod.ref for pod in await anext(seen)] == [PodRef("b", "p")]
        assert {each.query["fieldSelector"] for each in server.requests} == {"spec.nodeName=n1"}

    served(test)


def test_a_watch_that_breaks_off_goes_on() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        seen = client.watch_node("n1")
        await labels_of_next(seen)
        for number in ("3", "4"):
            following = asyncio.create_task(labels_of_next(seen))
            while len(server.watches()) < (1 if number == "3" else 2):
                await asyncio.sleep(0)
            await server.break_connections()
            server.put(NODE, {"metadata": {"labels": {"a": number}}})
            assert await following == {"a": number}

    served(test)


def test_a_watch_that_ends_in_peace_goes_on() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        seen = client.watch_node("n1")
        await labels_of_next(seen)
        following = asyncio.create_task(labels_of_next(seen))
        while len(server.watches()) < 3:
            server.end_watches()
            await asyncio.sleep(0.001)
        server.put(NODE, {"metadata": {"labels": {"a": "9"}}})
        assert await following == {"a": "9"}

    served(test)


def test_a_watch_that_is_quiet_for_long_ends_without_a_word_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "_WATCH_TIMEOUT", httpx2.Timeout(PATIENCE, read=0.05))

    async def test(server: FakeApiServer, client: KubeClient) -> None:
        server.put(NODE, {})
        seen = client.watch_node("n1")
        await anext(seen)
        following = asyncio.create_task(labels_of_next(seen))
        while len(server.watches()) < 4:
            await asyncio.sleep(0.01)
        server.put(NODE, {"metadata": {"labels": {"a": "b"}}})
        assert await following == {"a": "b"}

    served(test)
    assert not caplog.records


def test_a_watch_without_bookmarks_is_to_end_before_its_silence_counts_as_a_loss() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        asked = ApiConnection(ApiServer(server.url))
        for bookmarked in (True, False):
            events = ObjectSource(asked, "events", "/api/v1/events", {}, lambda raw: raw, bookmarked=bookmarked)
            async with aclosing(events.watch("100")) as news:
                await anext(news)
        await asked.aclose()
        with_bookmarks, without = (int(each.query["timeoutSeconds"]) for each in server.watches())
        assert without + 10 < connection.SILENT_SECONDS < with_bookmarks

    served(test)


def test_a_version_that_is_gone_is_listed_again_and_an_object_that_went_meanwhile_is_seen_gone() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        seen = client.watch_node("n1")
        await labels_of_next(seen)
        await server.break_connections()
        server.delete(NODE)
        server.compact()
        assert await anext(seen) is None
        server.put(NODE, {"metadata": {"labels": {"back": "1"}}})
        assert await labels_of_next(seen) == {"back": "1"}
        assert len(server.lists()) == 2

    served(test)


def test_a_refused_watch_is_tried_again_from_a_fresh_list() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        server.failures += [(403, {"message": "not yours"})] * 3
        seen = client.watch_node("n1")
        assert await labels_of_next(seen) == {"a": "1", "b": "2"}
        server.failures.append((504, {"message": "Too large resource version"}))
        following = asyncio.create_task(labels_of_next(seen))
        while server.failures:
            await asyncio.sleep(0.001)
        server.put(NODE, {"metadata": {"labels": {"a": "5"}}})
        assert await following == {"a": "5"}

    served(test)


def test_a_database_that_was_put_back_to_an_earlier_version_is_followed() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        server.version = 5000
        server.put(NODE, {"metadata": {"labels": {"a": "1"}}})
        seen = client.watch_node("n1")
        assert await labels_of_next(seen) == {"a": "1"}
        following = asyncio.create_task(labels_of_next(seen))
        while not server.watches():
            await asyncio.sleep(0.001)
        server.version = 200
        server.put(NODE, {"metadata": {"labels": {"a": "restored"}}})
        server.end_watches()
        assert await following == {"a": "restored"}

    served(test)


def test_a_condition_with_a_status_of_another_word_is_unknown() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        server.put(
            NODE, {"status": {"conditions": [{"type": "Odd", "status": ""}, {"type": "Ready", "status": "True"}]}}
        )
        conditions = (await client.get_node("n1")).conditions
        assert [each.status for each in conditions] == [ConditionStatus.UNKNOWN, ConditionStatus.TRUE]

    served(test)


def test_a_restart_of_the_api_server_is_survived() -> None:
    async def test(server: FakeApiServer, client: KubeClient) -> None:
        seen = client.watch_node("n1")
        await labels_of_next(seen)
        following = asyncio.create_task(labels_of_next(seen))
        await server.stop()
        await asyncio.sleep(0.05)
        server.put(NODE, {"metadata": {"labels": {"a": "7"}}})
        await server.start()
        assert await following == {"a": "7"}

    served(test)


def test_the_token_of_the_moment_is_sent() -> None:
    async def run() -> None:
        tokens = iter(["one", "two"])
        async with api_server() as server:
            server.put(NODE, {})
            connection = ApiConnection(ApiServer(server.url, token=lambda: next(tokens)))
            for _ in range(2):
                (await connection.ask("read", "GET", NODE)).accepted()
            await connection.aclose()
            sent = [seen.headers["authorization"] for seen in server.requests]
            assert sent == ["Bearer one", "Bearer two"]

    asyncio.run(run())
