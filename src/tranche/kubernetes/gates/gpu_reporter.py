"""The agent's part that says in a lease what the node's GPUs are, so that a controller can choose of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tranche.core.allocation import Withheld
from tranche.core.errors import TrancheError, UsageError
from tranche.kubernetes.api.leases import Lease, LeaseApi
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.node_mode import mode_in_force
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.dra.kept_room import KeptSize, kept_sizes
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
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.observation.device_health_watch import DeviceHealthWatch, faulty
from tranche.kubernetes.observation.health import FaultyDevices
from tranche.kubernetes.observation.inventory import Snapshot
from tranche.kubernetes.report_lease import PAUSE_SECONDS, ReportLease

CHECK_SECONDS = 300.0
"""So often the lease is read again: somebody may have deleted it."""

_log = logging.getLogger(__name__)


class GpuReporter:
    """A component: writes the lease when something has changed, at most once in `pause` seconds.

    `snapshots` are the node's, `node` is the node object as last seen, `refused` says why pods, by uid, cannot have their share.
    `device_health` says what is faulty; None where nobody listens to the driver. `say` records an event of the node, by
    reason and message. `clock` is monotonic, in seconds.
    """

    name = "gpu-news"

    def __init__(
        self,
        leases: LeaseApi,
        snapshots: LatestValue[Snapshot],
        node: LatestValue[KubeNode | None],
        refused: LatestValue[Mapping[str, str]],
        *,
        device_health: DeviceHealthWatch | None = None,
        say: Callable[[KubeNode, str, str], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: float = PAUSE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._snapshots = snapshots
        self._node = node
        self._refused = refused
        self._device_health = device_health
        self._say_event = say
        self._unknown_size = ""
        self._lease = ReportLease(
            leases,
            self,
            every=CHECK_SECONDS,
            renew=False,
            clock=clock,
            trouble="the controller was told nothing of the GPUs yet",
            pause=pause,
            sleep=sleep,
        )

    def ready(self) -> Readiness:
        """Ready when the controller could be told of the last change."""
        return Readiness(not self._lease.trouble, self._lease.trouble)

    async def run(self) -> None:
        """Keep the lease true until cancelled. It stays then: what the node has is not free because nobody tells of it."""
        others: list[LatestValue[Any]] = [self._refused]
        async with asyncio.TaskGroup() as group:
            if self._device_health is not None:
                others.append(self._device_health.faults)
            group.create_task(self._lease.run((self._snapshots, self._node), others))

    def about(self) -> KubeNode | None:
        """The node, once it is known."""
        node = self._node.value
        return node if node is not None and node.uid else None

    def lease_name(self, node: KubeNode) -> str:
        """That of the node's GPUs."""
        return lease_name(GPUS, node.name)

    def read(self, lease: Lease) -> NodeGpus | None:
        """What it says, but for its generation, which is no news; None when it cannot be read."""
        try:
            return replace(gpus_from_lease(lease), generation=0)
        except UsageError:
            return None

    async def now(self, node: KubeNode, before: NodeGpus | None) -> NodeGpus:
        """What the GPUs are, of which what was withheld before has its say."""
        known = () if before is None else before.view.withheld
        return await asyncio.to_thread(
            _to_say, node, self._snapshots.value, self._ward(), await self._sizes(node), known, self._refusals()
        )

    async def to_lease(self, node: KubeNode, said: NodeGpus, before: Lease | None) -> Lease:
        """The next generation of the one before, whether the rest of that can be read or not."""
        generation = 1 if before is None else generation_of(before) + 1
        return gpus_to_lease(replace(said, generation=generation), (node.name, node.uid))

    def not_told(self, error: TrancheError) -> None:
        """A line of the log."""
        _log.warning("GPUs not told of", extra={"reason": error.reason, "error": str(error)})

    def _ward(self) -> FaultyDevices:
        return FaultyDevices() if self._device_health is None else self._device_health.faults.value

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
    faults: FaultyDevices,
    sizes: Sequence[KeptSize],
    before: Collection[Withheld],
    refused: Mapping[str, str],
) -> NodeGpus:
    mode = mode_in_force(node.labels)
    view = offered_view(snapshot.view, mode, snapshot.condemned)
    kept = withheld_places(view, mode, faulty(faults, view.node), sizes, before)
    return NodeGpus(node.name, lasting(replace(view, withheld=kept)), refused=dict(refused))
