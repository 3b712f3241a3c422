"""`python -m bench.dashboard_server NODES CHANGES [PORT [mixed]]`: serves a simulated cluster with so many changes a second.

It prints its port, and then for each version of the snapshot when that was: `VERSION SECONDS`, since the epoch.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import Scope

from bench.simulated_cluster import SimulatedCluster
from tranche.dashboard.cluster.cluster_history import ClusterHistory
from tranche.dashboard.cluster.cluster_routes import ClusterPages
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, NameVisibility
from tranche.dashboard.cluster.user_view import UserView, ViewerPermission
from tranche.dashboard.live import Publisher

_TURN_SECONDS = 0.02
_LOOK_SECONDS = 1.0


def main() -> None:
    nodes, changes = int(sys.argv[1]), float(sys.argv[2])
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(sys.argv[3]) if len(sys.argv) > 3 else 0))
        listener.listen(16)
        config = uvicorn.Config(
            _OpenRequestHandler(SimulatedCluster(nodes, mixed="mixed" in sys.argv), changes),
            log_config=None,
            access_log=False,
            lifespan="on",
        )
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(config).run([listener])


class _OpenRequestHandler(ClusterPages):
    """Lets everybody in."""

    def __init__(self, cluster: SimulatedCluster, changes: float) -> None:
        unread: Any = None
        super().__init__("simulated", unread, lifespan=self._playing)
        self._cluster, self._changes = cluster, changes
        self._view = UserView(ViewerPermission(NameVisibility(everywhere=True), all_nodes=True))

    def strange(self, method: str, headers: Mapping[str, str]) -> None:
        return None

    async def admit(self, scope: Scope, headers: Mapping[str, str]) -> str:
        scope["view"] = self._view
        return ""

    @asynccontextmanager
    async def _playing(self, _: Starlette) -> AsyncIterator[None]:
        playing = asyncio.create_task(_play(self._cluster, self._view.live, self._changes))
        try:
            yield
        finally:
            self._view.live.end()
            playing.cancel()


async def _play(cluster: SimulatedCluster, live: Publisher[ClusterSnapshot], changes: float) -> None:
    """So many changes a second, each in a snapshot of its own; a look at least every second, also where nothing changes."""
    snapshot, history = cluster.snapshot(time.time()), ClusterHistory()
    live.take(snapshot)
    history.take(snapshot)
    began, made = time.monotonic(), 0
    while True:
        await asyncio.sleep(_TURN_SECONDS)
        while made < changes * (time.monotonic() - began):
            made += 1
            now = time.time()
            snapshot = snapshot.after(cluster.changes(1, now), now)
            live.take(snapshot)
            history.take(snapshot)
            print(snapshot.version, now, flush=True)
        if (now := time.time()) - snapshot.taken > _LOOK_SECONDS:
            snapshot = snapshot.after((), now)
            live.take(snapshot)


if __name__ == "__main__":
    main()
