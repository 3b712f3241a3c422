"""`python -m bench.dashboard_server NODES CHANGES [PORT [mixed]]`: serves a simulated cluster with so many changes a second.

It prints its port, and then for each version of the snapshot when that was: `VERSION SECONDS`, since the epoch.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.simulated_cluster import SimulatedCluster
from tranche.dashboard.app import static_file
from tranche.dashboard.cluster.cluster_history import ClusterHistory
from tranche.dashboard.cluster.live import ClusterPublisher
from tranche.dashboard.cluster.routes import ClusterContext, node_routes
from tranche.dashboard.cluster.visibility import NameVisibility

_TURN_SECONDS = 0.02
_LOOK_SECONDS = 1.0


def main() -> None:
    nodes, changes = int(sys.argv[1]), float(sys.argv[2])
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(sys.argv[3]) if len(sys.argv) > 3 else 0))
        listener.listen(16)
        config = uvicorn.Config(
            _app(SimulatedCluster(nodes, mixed="mixed" in sys.argv), changes),
            log_config=None,
            access_log=False,
            lifespan="on",
        )
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(config).run([listener])


def _app(cluster: SimulatedCluster, changes: float) -> Starlette:
    async def everybody(request: Request) -> NameVisibility:
        return NameVisibility(everywhere=True)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        playing = asyncio.create_task(_play(cluster, live, changes))
        try:
            yield
        finally:
            live.end()
            playing.cancel()

    async def static(request: Request) -> Response:
        return static_file(request.path_params["name"])

    live = ClusterPublisher()
    routes = node_routes(ClusterContext("simulated", live, everybody))
    return Starlette(routes=[*routes, Route("/static/{name}", static)], lifespan=lifespan)


async def _play(cluster: SimulatedCluster, live: ClusterPublisher, changes: float) -> None:
    """So many changes a second, each in a snapshot of its own; a look at least every second, also where nothing changes."""
    snapshot, books = cluster.snapshot(time.time()), (ClusterHistory(),)
    live.take(snapshot)
    for book in books:
        book.take(snapshot)
    began, made = time.monotonic(), 0
    while True:
        await asyncio.sleep(_TURN_SECONDS)
        while made < changes * (time.monotonic() - began):
            made += 1
            now = time.time()
            snapshot = snapshot.after(cluster.changes(1, now), now)
            live.take(snapshot)
            for book in books:
                book.take(snapshot)
            print(snapshot.version, now, flush=True)
        if (now := time.time()) - snapshot.taken > _LOOK_SECONDS:
            snapshot = snapshot.after((), now)
            live.take(snapshot)


if __name__ == "__main__":
    main()
