"""Keeps the node's feature labels true: writes them when GPUs, strategy or node change, and removes them when no longer valid."""

from __future__ import annotations

import logging
import time

from tranche.hardware.host_facts import read_host_facts
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.node_mode import NodeMode, mode_in_force
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.feature_labels.labels import changed_labels, feature_labels
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.replicas import NOT_SHARED, ReplicaPolicy
from tranche.kubernetes.node.resources import MigStrategy
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.serving.supervisor import Reconciler

_log = logging.getLogger(__name__)


class FeatureLabelWriter:
    """A component of the node agent."""

    name = "feature-labels"

    def __init__(
        self,
        services: NodeContext,
        strategy: LatestValue[MigStrategy],
        sharing: LatestValue[ReplicaPolicy],
        *,
        heeds_mode: bool = False,
    ) -> None:
        """With `heeds_mode`, a node in a mode other than static shares nothing by the device plugin, and its labels say so."""
        self._heeds_mode = heeds_mode
        self._services = services
        self._strategy = strategy
        self._sharing = sharing
        self._reconciler = Reconciler(
            _log, "cannot write the node labels", trouble="the labels have not been checked yet"
        )

    def ready(self) -> Readiness:
        """Ready when the labels were true at the last look."""
        return Readiness(not self._reconciler.trouble, self._reconciler.trouble)

    async def run(self) -> None:
        """Keep the labels until cancelled. They stay on the node, as the GPUs do."""
        services = self._services
        await self._reconciler.run(
            self._look, (services.node, services.inventory.latest, self._strategy, self._sharing)
        )

    async def _look(self) -> None:
        seen = self._services.node.value
        if seen is None or not self._changes(seen):
            return
        # The observed node may be older than the last write.
        node = await self._services.api.get_node(self._services.node_name)
        if changes := self._changes(node):
            await self._services.api.patch_node_metadata(node.name, labels=changes)
            _log.info("labels written", extra={"count": len(changes)})

    def _changes(self, node: KubeNode) -> dict[str, str | None]:
        state = self._services.inventory.latest.value.view.node
        facts = read_host_facts(gpu.pci_bus_id for gpu in state if not gpu.lost)
        static = not self._heeds_mode or mode_in_force(node.labels) is NodeMode.STATIC
        wanted = feature_labels(state, self._strategy.value, facts, self._sharing.value if static else NOT_SHARED)
        return changed_labels(node.labels, wanted, time.time())
