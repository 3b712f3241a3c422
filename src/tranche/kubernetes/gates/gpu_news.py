"""The agent's part that says in a lease what the node's GPUs are, so that a controller can choose of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tranche.core.allocation import Withheld
from tranche.core.errors import TrancheError, UsageError
from tranche.kubernetes.api.leases import Lease, LeaseApi
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.node_mode import mode_in_force
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.dra.kept_room import KeptSize, kept_sizes
from tranche.kubernetes.dra.sick_bay import SickBay, faulty
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
from tranche.kubernetes.gates.withheld import withheld_places
from tranche.kubernetes.live import Live
from tranche.kubernetes.observation.health import Ward
from tranche.kubernetes.observation.inventory import Snapshot

PAUSE_SECONDS = 1.0
_RETRY_SECONDS = 5.0
_CHECK_SECONDS = 300.0
"""So often the lease is read again: somebody may have deleted it."""

_log = logging.getLogger(__name__)


class GpuNews:
    """A component: writes the lease when something has changed, at most once in `pause` seconds.

    `snapshots` are the node's, `node` is the node object as last seen, `refused` says why pods, by uid, cannot have their share.
    `sick_bay` says what is faulty; None where nobody listens to the driver. `say` records an event of the node, by reason and
    message.
    """

    name = "gpu-news"

    def __init__(
        self,
        leases: LeaseApi,
        snapshots: Live[Snapshot],
        node: Live[KubeNode | None],
        refused: Live[Mapping[str, str]],
        *,
        sick_bay: SickBay | None = None,
        say: Callable[[KubeNode, str, str], Awaitable[None]] | None = None,
        pause: float = PAUSE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._leases = leases
        self._snapshots = snapshots
        self._node = node
        self._refused = refused
        self._sick_bay = sick_bay
        self._say_event = say
        self._unknown_size = ""
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
            if self._sick_bay is not None:
                group.create_task(self._sick_bay.run())
                group.create_task(self._listen(self._sick_bay.ward.changes()))
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
        before, lease = self._written or await self._read(node.name)
        known = () if before is None else before.view.withheld
        said = await asyncio.to_thread(
            _to_say, node, self._snapshots.value, self._ward(), await self._sizes(node), known, self._refusals()
        )
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

    def _ward(self) -> Ward:
        return Ward() if self._sick_bay is None else self._sick_bay.ward.value

    async def _sizes(self, node: KubeNode) -> tuple[KeptSize, ...]:
        """What the administrator has the node keep; none, and an event, for words that say nothing of the kind."""
        sizes, problem = kept_sizes(node.annotations)
        if problem and problem != self._unknown_size and self._say_event is not None:
            await self._say_event(node, "KeptRoomUnknown", problem)
        self._unknown_size = problem
        return sizes

    def _refusals(self) -> Mapping[str, str]:
        return self._refused.value if self._refused.synced else {}


def _to_say(
    node: KubeNode,
    snapshot: Snapshot,
    ward: Ward,
    sizes: Sequence[KeptSize],
    before: Collection[Withheld],
    refused: Mapping[str, str],
) -> NodeGpus:
    mode = mode_in_force(node.labels)
    view = offered_view(snapshot.view, mode, snapshot.condemned)
    kept = withheld_places(view, mode, faulty(ward, view.node), sizes, before)
    return NodeGpus(node.name, lasting(replace(view, withheld=kept)), refused=dict(refused))
