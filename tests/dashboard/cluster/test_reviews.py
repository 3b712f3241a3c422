"""Who somebody is and what he may see is the API server's word: asked again after half a minute, and no when it is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.dashboard.cluster.reviewing import People
from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.waiting import patiently
from tranche.core.errors import KubernetesForbidden, KubernetesUnavailable
from tranche.dashboard.cluster.authentication import LONGEST_SECONDS, KubeUser, SessionStore
from tranche.dashboard.cluster.kube_reviews import FRESH_SECONDS, REFUSED_SECONDS, STANDING_SECONDS, AccessReviewClient
from tranche.dashboard.cluster.snapshot import NameVisibility
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.objects import RbacPermission

ANA = KubeUser("ana", ("system:authenticated",), "u-ana", token="t-ana")


class Asking:
    """Reviews of an API server that knows Ana, who has team blue's rights, and Eve, who has none."""

    def __init__(self, server: FakeApiServer, connection: ApiConnection) -> None:
        self.server = server
        self.now = 0.0
        self.people = People({"t-ana": "ana", "t-eve": "eve"})
        self.people.let("ana", "list pods", namespaces=["blue"])
        self.people.serve(server)
        self.reviews = AccessReviewClient(connection, clock=lambda: self.now)


def asking(act: Callable[[Asking], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with api_server() as server:
            connection = ApiConnection(ApiServer(server.url))
            try:
                await patiently(act(Asking(server, connection)))
            finally:
                await connection.aclose()

    asyncio.run(run())


def test_a_token_is_its_owners_and_its_rights_are_his() -> None:
    async def act(it: Asking) -> None:
        assert await it.reviews.who("t-ana") == ANA
        for token in ("", "unknown", "t-ana ", "t\nana", "ü"):
            assert await it.reviews.who(token) is None
        assert await it.reviews.sight(ANA, ["blue", "zebra", ""]) == NameVisibility(frozenset({"blue"}))
        eve = await it.reviews.who("t-eve")
        assert eve is not None
        assert await it.reviews.sight(eve, ["blue", "zebra"]) == NameVisibility()
        it.people.let("eve", "list pods")
        it.now = REFUSED_SECONDS - 1
        assert await it.reviews.sight(eve, ["blue", "zebra"]) == NameVisibility()
        it.now = REFUSED_SECONDS
        assert await it.reviews.sight(eve, ["blue"]) == NameVisibility(everywhere=True)

    asking(act)


def test_an_answer_is_remembered_for_half_a_minute_and_no_longer() -> None:
    async def act(it: Asking) -> None:
        right = RbacPermission("list", "pods", "blue")
        assert await asyncio.gather(*(it.reviews.may(ANA, right) for _ in range(10))) == [True] * 10
        assert len(it.people.asked) == 1
        it.people.rights.clear()
        it.now = FRESH_SECONDS - 1
        assert await it.reviews.may(ANA, right)
        it.now = FRESH_SECONDS
        assert not await it.reviews.may(ANA, right)
        del it.people.users["t-ana"]
        it.now += FRESH_SECONDS
        assert await it.reviews.who("t-ana") is None

    asking(act)


def test_while_the_api_server_is_silent_nobody_sees_more_than_before_and_after_a_while_nothing() -> None:
    async def act(it: Asking) -> None:
        right, other = RbacPermission("list", "pods", "blue"), RbacPermission("list", "pods", "zebra")
        assert await it.reviews.may(ANA, right)
        assert not await it.reviews.may(ANA, other)
        it.people.let("ana", "list pods")
        it.now = FRESH_SECONDS
        it.server.failures = [(503, {"message": "not now"})] * 20
        assert await it.reviews.may(ANA, right)
        assert not await it.reviews.may(ANA, other)
        with pytest.raises(KubernetesUnavailable):
            await it.reviews.may(ANA, RbacPermission("list", "nodes"))
        with pytest.raises(KubernetesUnavailable):
            await it.reviews.who("t-ana")
        it.now = STANDING_SECONDS
        with pytest.raises(KubernetesUnavailable):
            await it.reviews.may(ANA, right)

    asking(act)


def test_a_refused_or_strange_answer_is_no_yes() -> None:
    async def act(it: Asking) -> None:
        right = RbacPermission("list", "pods", "blue")
        it.server.failures = [(403, {"message": "the dashboard may not ask"})]
        with pytest.raises(KubernetesForbidden):
            await it.reviews.may(ANA, right)
        for strange in ({}, {"allowed": "true"}, {"allowed": True, "denied": True}):
            it.server.failures = [(201, {"status": strange})]
            assert not await it.reviews.may(ANA, right)
            it.now += REFUSED_SECONDS

    asking(act)


def test_a_session_ends() -> None:
    now = 0.0
    names = iter(f"s{number}" for number in range(5_000))
    sessions = SessionStore(lambda: now, lambda: next(names))
    first = sessions.begin("t")
    assert sessions.token(first) == "t"
    assert sessions.token("") == sessions.token("S0") == ""
    sessions.end(first)
    assert sessions.token(first) == ""
    kept = sessions.begin("t")
    now = LONGEST_SECONDS
    assert sessions.token(kept) == ""
    crowd = [sessions.begin(f"t{number}") for number in range(3_000)]
    assert sum(bool(sessions.token(each)) for each in crowd) == 2_000
    assert sessions.token(crowd[-1]) == "t2999"
