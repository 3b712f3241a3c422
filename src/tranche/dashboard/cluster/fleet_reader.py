"""What nodes offer to claims and what claims have, read when a page needs it: it is too much to be watched for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tranche.core.errors import ClaimsUnavailable
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.reading import read_fleet

_FRESH_SECONDS = 5.0


class FleetReader:
    """With the rights of the dashboard's own account. `clock` is monotonic, in seconds."""

    def __init__(self, connection: ApiConnection, namespace: str, *, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._namespace = namespace
        self._clock = clock
        self._fleet = Fleet()
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def fleet(self) -> Fleet:
        """As it is now, or was five seconds ago; empty in a cluster without claims. KubernetesUnavailable when nobody answers."""
        async with self._reading:
            if self._clock() - self._read_at >= _FRESH_SECONDS:
                try:
                    self._fleet = await read_fleet(self._connection, self._namespace)
                except ClaimsUnavailable:
                    self._fleet = Fleet()
                self._read_at = self._clock()
            return self._fleet
