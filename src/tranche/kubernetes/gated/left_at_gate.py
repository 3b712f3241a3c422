"""Tells pods stranded at the gate in a cluster with claims that they get no share there, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.client import ClusterReader
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.component import Component
from tranche.kubernetes.gated.explaining import AT_GATE_ADVICE, LEFT_AT_GATE
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod, decode_cluster_pod

REASON = "WaitsForNobody"
LOOK_SECONDS = 60.0
_MOST_SAID = 50

_log = logging.getLogger(__name__)


class StrandedPodWatch(Component):
    """A component of clusters with claims. Every replica looks; all write one event."""

    name = "left-at-gate"

    def __init__(self, connection: ApiConnection, say: Callable[[ClusterPod, str, str], Awaitable[None]]) -> None:
        self._connection = connection
        self._say = say
        self._said: set[str] = set()

    async def run(self) -> None:
        """Look at intervals until cancelled."""
        while True:
            try:
                await self._look()
            except TrancheError as error:
                _log.info("cannot record why pods stay gated", extra={"reason": error.reason, "error": str(error)})
            await self._connection.sleep(LOOK_SECONDS * (0.5 + self._connection.random()))

    async def _look(self) -> None:
        found = await ClusterReader(self._connection).decoded(
            "pending pods", "/api/v1/pods", decode_cluster_pod, fieldSelector="status.phase=Pending"
        )
        waiting = {pod.uid: pod for pod in found or () if pod.waits and not pod.ending}
        self._said &= waiting.keys()
        for uid in sorted(waiting.keys() - self._said)[:_MOST_SAID]:
            await self._say(waiting[uid], REASON, f"{LEFT_AT_GATE}; {AT_GATE_ADVICE}")
            self._said.add(uid)
