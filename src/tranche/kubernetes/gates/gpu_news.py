"""The agent's part that says in a lease what the node's GPUs are, so that a controller can choose of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from tranche.core.errors import TrancheError, UsageError
from tranche.kubernetes.api.leases import Lease, LeaseApi
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.node_mode import NodeMode, mode_in_force
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.gates.leases import (
    GPUS,
    NodeGpus,
    generation_of,
    gpus_from_lease,
    gpus_to_lease,
    lasting,
    lease_name,
)
from tranche.kubernetes.gates.offered import offered_view
from tranche.kubernetes.live import Live
from tranche.kubernetes.observation.inventory import Snapshot

PAUSE_SECONDS = 1.0
_RETRY_SECONDS = 5.0
_CHECK_SECONDS = 300.0
"""So often the lease is read again: somebody may have deleted it."""

_log = logging.getLogger(__name__)


class GpuNews:
    """A component: writes the lease when something has changed, at most once in `pause` seconds.

    `snapshots` are the node's, `node` is the node object as last seen, `refused` says why pods, by uid, cannot have their share.
    """

    name = "gpu-news"

    def __init__(
        self,
        leases: LeaseApi,
        snapshots: Live[Snapshot],
        node: Live[KubeNode | None],
        refused: Live[Mapping[str, str]],
        *,
        pause: float = PAUSE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._leases = leases
        self._snapshots = snapshots
        self._node = node
        self._refused = refused
        self._pause = pause
        self._sleep = sleep
        self._wake = asyncio.Event()
        self._written: tuple[NodeGpus | None, Lease] | None = None
        self._trouble = "the controller was told nothing of the GPUs yet"

    def ready(self) -> Readiness:
        """Ready when the controller could be told of the last change."""
        return Readiness(not self._trouble, self._trouble)

    async def run(self) -> None:
        """Keep the lease true until cancelled. It stays then: what the node has is not free because nobody tells of it."""
        self._written = None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(self._snapshots.changes()))
            group.create_task(self._listen(self._node.changes()))
            group.create_task(self._listen(self._refused.changes()))
            group.create_task(self._keep())

    async def _listen(self, news: AsyncIterator[object]) -> None:
        async for _ in news:
            self._wake.set()

    async def _keep(self) -> None:
        await self._snapshots.first()
        await self._node.first()
        while True:
            self._wake.clear()
            try:
                await self._say()
            except TrancheError as error:
                if str(error) != self._trouble:
                    _log.warning("GPUs not told of", extra={"reason": error.reason, "error": str(error)})
                self._trouble = str(error)
                self._written = None
                await self._sleep(_RETRY_SECONDS)
                continue
            self._trouble = ""
            await self._sleep(self._pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._wake.wait()
                    continue
            self._written = None

    async def _say(self) -> None:
        node = self._node.value
        if node is None or not node.uid:
            return
        mode = mode_in_force(node.labels)
        said = await asyncio.to_thread(_to_say, node.name, self._snapshots.value, mode, self._refusals())
        before, lease = self._written or await self._read(node.name)
        if before is not None and replace(said, generation=before.generation) == before:
            self._written = None if lease is None else (before, lease)
            return
        said = replace(said, generation=1 if lease is None else generation_of(lease) + 1)
        wanted = gpus_to_lease(said, (node.name, node.uid))
        if lease is None:
            answer = await self._leases.create(wanted)
        else:
            answer = await self._leases.replace(replace(wanted, version=lease.version))
        self._written = None if answer is None else (said, answer)
        if answer is None:
            self._wake.set()  # somebody else has written it, or removed it: it is read anew

    async def _read(self, node: str) -> tuple[NodeGpus | None, Lease | None]:
        lease = await self._leases.get(lease_name(GPUS, node))
        if lease is None:
            return None, None
        try:
            return gpus_from_lease(lease), lease
        except UsageError:
            return None, lease

    def _refusals(self) -> Mapping[str, str]:
        return self._refused.value if self._refused.synced else {}


def _to_say(node: str, snapshot: Snapshot, mode: NodeMode, refused: Mapping[str, str]) -> NodeGpus:
    view = lasting(offered_view(snapshot.view, mode, snapshot.condemned))
    return NodeGpus(node, view, refused=dict(refused))
