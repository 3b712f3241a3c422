"""How the cluster gives shares is found out, and a part runs only where it is so, but for what it owes elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.waiting import patiently, until
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.backend_watch import BackendComponent, BackendWatch, CleanupTask
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS, AllocationBackend
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.latest_value import LatestValue


def on_server(act: Callable[[FakeApiServer, ApiConnection], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with api_server() as server:
            connection = ApiConnection(ApiServer(server.url))
            try:
                await patiently(act(server, connection))
            finally:
                await connection.aclose()

    asyncio.run(run())


class Counting:
    name = "counting"

    def __init__(self) -> None:
        self.running = 0

    def ready(self) -> Readiness:
        return Readiness(False, "it counts")

    async def run(self) -> None:
        self.running += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.running -= 1


def test_the_backend_is_found_out_and_a_component_runs_only_in_its_own() -> None:
    async def act(server: FakeApiServer, connection: ApiConnection) -> None:
        asked = asyncio.Event()

        async def sleep(seconds: float) -> None:
            asked.set()
            await asyncio.sleep(0.01)

        server.put("/version", {"gitVersion": "v1.33.4"})
        server.refusals["GET", "/apis/resource.k8s.io/v1"] = (404, {"message": "404 page not found"})
        connection.sleep = sleep
        watch, part = BackendWatch(connection), Counting()
        gates = BackendComponent(part, watch.latest, frozenset((AllocationBackend.GATES,)))
        assert not gates.ready().ready
        tasks = [asyncio.create_task(watch.run()), asyncio.create_task(gates.run())]
        await until(lambda: part.running == 1)
        assert gates.ready().why == "it counts"
        server.refusals.clear()
        server.put("/version", {"gitVersion": "v1.36.3"})
        server.put("/apis/resource.k8s.io/v1", {})
        await until(lambda: part.running == 0)
        assert (watch.latest.value, gates.ready().ready) == (AllocationBackend.CLAIMS, True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    on_server(act)


def test_a_component_does_what_it_owes_in_another_backend_and_no_longer() -> None:
    async def act(server: FakeApiServer, connection: ApiConnection) -> None:
        backend: LatestValue[AllocationBackend] = LatestValue()
        part, settling, left = Counting(), Counting(), [True]

        async def is_left() -> bool:
            return left[0]

        claims = BackendComponent(part, backend, BY_CLAIMS, owed=CleanupTask(is_left, settling.run), look_seconds=0.01)
        running = asyncio.create_task(claims.run())
        backend.publish(AllocationBackend.GATES)  # as an agent finds it that was started anew with another word
        await until(lambda: settling.running == 1)
        assert (part.running, claims.ready().ready) == (0, True)
        backend.publish(AllocationBackend.CLAIMS)
        await until(lambda: (part.running, settling.running) == (1, 0))
        backend.publish(AllocationBackend.GATES)
        await until(lambda: (part.running, settling.running) == (0, 1))
        left[0] = False
        await until(lambda: settling.running == 0)
        left[0] = True
        await until(lambda: settling.running == 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert settling.running == 0

    on_server(act)
