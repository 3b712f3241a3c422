"""Keeps the node's feature labels true: written when GPUs, strategy or node change, removed when they no longer hold."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable

from tranche.core.errors import TrancheError
from tranche.hardware.host_facts import HostFacts, read_host_facts
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.node_mode import NodeMode, mode_in_force
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.feature_labels.labels import changed_labels, feature_labels
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.replicas import NOT_SHARED, ReplicaPolicy
from tranche.kubernetes.node.resources import MigStrategy
from tranche.kubernetes.node.services import NodeContext

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0

_log = logging.getLogger(__name__)


class FeatureLabelWriter:
    """A component of the node agent. `clock` is seconds since the epoch."""

    name = "feature-labels"

    def __init__(
        self,
        services: NodeContext,
        strategy: LatestValue[MigStrategy],
        sharing: LatestValue[ReplicaPolicy],
        *,
        heeds_mode: bool = False,
        clock: Callable[[], float] = time.time,
        host_facts: Callable[[Iterable[str]], HostFacts] = read_host_facts,
    ) -> None:
        """With `heeds_mode` a node of another mode than static shares nothing by the device plugin, and says so."""
        self._heeds_mode = heeds_mode
        self._services = services
        self._strategy = strategy
        self._sharing = sharing
        self._clock = clock
        self._host_facts = host_facts
        self._wake = asyncio.Event()
        self._trouble = "the labels were not looked at yet"

    def ready(self) -> Readiness:
        """Ready when the labels were true at the last look."""
        return Readiness(not self._trouble, self._trouble)

    async def run(self) -> None:
        """Keep the labels until cancelled. They stay on the node then: the GPUs do, too."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(self._services.node.changes()))
            group.create_task(self._listen(self._services.inventory.latest.changes()))
            group.create_task(self._listen(self._strategy.changes()))
            group.create_task(self._listen(self._sharing.changes()))
            group.create_task(self._keep())

    async def _listen(self, news: AsyncIterator[object]) -> None:
        async for _ in news:
            self._wake.set()

    async def _keep(self) -> None:
        await self._services.node.first()
        await self._services.inventory.latest.first()
        await self._strategy.first()
        await self._sharing.first()
        pause = _FIRST_PAUSE_SECONDS
        while True:
            self._wake.clear()
            try:
                await self._look()
            except TrancheError as error:
                if str(error) != self._trouble:
                    _log.warning("labels not written", extra={"reason": error.reason, "error": str(error)})
                self._trouble = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            self._trouble, pause = "", _FIRST_PAUSE_SECONDS
            await self._wake.wait()

    async def _look(self) -> None:
        seen = self._services.node.value
        if seen is None or not self._changes(seen):
            return
        # What was seen may be older than what was last written.
        node = await self._services.api.get_node(self._services.node_name)
        if changes := self._changes(node):
            await self._services.api.patch_node_metadata(node.name, labels=changes)
            _log.info("labels written", extra={"count": len(changes)})

    def _changes(self, node: KubeNode) -> dict[str, str | None]:
        state = self._services.inventory.latest.value.view.node
        facts = self._host_facts(gpu.pci_bus_id for gpu in state if not gpu.lost)
        static = not self._heeds_mode or mode_in_force(node.labels) is NodeMode.STATIC
        wanted = feature_labels(state, self._strategy.value, facts, self._sharing.value if static else NOT_SHARED)
        return changed_labels(node.labels, wanted, self._clock())
