"""A node's own ticket, when answers are lost or late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.waiting import until
from tranche.core.errors import KubernetesUnavailable
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.object_client import Lease, LeaseClient
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.rollout.leadership import LEADER_LEASE, LeaderLease
from tranche.kubernetes.rollout.rollout import OwnTicket
from tranche.kubernetes.rollout.ticket import LayoutChangeState, RolloutStatus, ticket_name

PATH = f"/apis/coordination.k8s.io/v1/namespaces/tranche/leases/{ticket_name('n1')}"
WANTED, DONE = RolloutStatus(LayoutChangeState.WANTED, "l", "d"), RolloutStatus(LayoutChangeState.DONE)


class UnluckyClient(LeaseClient):
    """Loses its first answer to `create`; tells once, late, of the deletion of an earlier ticket when `late` is set."""

    lose = False
    late: asyncio.Event

    async def create(self, lease: Lease) -> Lease | None:
        made = await super().create(lease)
        if self.lose:
            self.lose = False
            raise KubernetesUnavailable("the answer was lost")
        return made

    async def watch(self, name: str) -> AsyncGenerator[Lease | None, None]:
        versions = super().watch(name)
        yield await anext(versions)
        await self.late.wait()
        yield None
        async for version in versions:
            yield version


@asynccontextmanager
async def unlucky() -> AsyncIterator[tuple[FakeApiServer, UnluckyClient, OwnTicket]]:
    async with api_server() as server, asyncio.timeout(60):
        connection = ApiConnection(ApiServer(server.url))
        client = UnluckyClient(connection, "tranche")
        client.late = asyncio.Event()

        async def at_once() -> float:
            return 0.0

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds / 1000)

        loop = asyncio.get_running_loop()
        node: LatestValue[KubeNode | None] = LatestValue()
        node.publish(KubeNode("n1", "u1"))
        services = SimpleNamespace(leases=client, node=node, node_name="n1")
        own = OwnTicket(cast(NodeContext, services), at_once, clock=loop.time, random=lambda: 0.0, sleep=sleep)
        task = asyncio.create_task(own.run())
        try:
            yield server, client, own
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await connection.aclose()


def test_a_ticket_whose_making_was_not_answered_is_found_and_taken_away() -> None:
    async def run() -> None:
        async with unlucky() as (server, client, own):
            client.lose = True
            own.wish(WANTED)
            await until(lambda: PATH in server.objects)
            own.wish(DONE)
            await until(lambda: PATH not in server.objects)
            await until(lambda: not own.waits)

    asyncio.run(run())


def test_late_news_of_an_earlier_tickets_end_does_not_hide_the_present_one() -> None:
    async def run() -> None:
        async with unlucky() as (server, client, own):
            own.wish(WANTED)
            await until(lambda: own.waits and len(server.lists()) > 1)
            client.late.set()
            own.wish(DONE)
            await until(lambda: PATH not in server.objects)
            own.wish(WANTED)
            await until(lambda: own.waits)

    asyncio.run(run())


def test_a_ticket_that_somebody_else_removed_is_made_anew() -> None:
    async def run() -> None:
        async with unlucky() as (server, client, own):
            client.late.set()
            own.wish(WANTED)
            await until(lambda: own.waits and bool(server.watches()))
            first = server.objects[PATH]["metadata"]["creationTimestamp"]
            server.delete(PATH)
            await until(
                lambda: PATH in server.objects and server.objects[PATH]["metadata"]["creationTimestamp"] != first
            )

    asyncio.run(run())


def test_a_leader_resigns_although_a_renewal_was_not_answered() -> None:
    async def run() -> None:
        async with unlucky() as (server, client, _):
            leadership = LeaderLease(client, "n1", clock=asyncio.get_running_loop().time)
            assert await leadership.try_to_lead()
            renewed = await client.get(LEADER_LEASE)
            assert renewed is not None
            await client.replace(renewed)
            await leadership.resign()
            assert not server.objects

    asyncio.run(run())
