"""Reads what nodes offer to claims, what claims have, and how the cluster gives shares. It reads on demand: a watch without
viewers would cost too much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

from tranche.core.errors import ClaimsUnavailable
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.reading import backend_in_force, read_fleet

_FRESH_SECONDS = 5.0

Read = TypeVar("Read")


class FleetReader:
    """Reads with the dashboard's own account, which may read leases in its namespace alone. `clock` is monotonic, in
    seconds.
    """

    def __init__(self, connection: ApiConnection, namespace: str, *, clock: Callable[[], float]) -> None:
        self._fleet = _Fresh(partial(_fleet, connection, namespace), clock)
        self._backend = _Fresh(partial(backend_in_force, connection, namespace), clock)

    async def fleet(self) -> Fleet:
        """As of now or five seconds ago; empty in a cluster without claims. KubernetesUnavailable without an answer."""
        return await self._fleet.get()

    async def backend(self) -> AllocationBackend:
        """How the cluster gives shares, as of now or five seconds ago. KubernetesUnavailable without an answer."""
        return await self._backend.get()


async def _fleet(connection: ApiConnection, namespace: str) -> Fleet:
    try:
        return await read_fleet(connection, namespace)
    except ClaimsUnavailable:
        return Fleet()


class _Fresh(Generic[Read]):
    """A reading, until it is too old. One caller at a time reads it again."""

    def __init__(self, read: Callable[[], Awaitable[Read]], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._found: tuple[float, Read] | None = None
        self._reading = asyncio.Lock()

    async def get(self) -> Read:
        """As of now, or five seconds ago."""
        async with self._reading:
            if self._found is None or self._clock() - self._found[0] >= _FRESH_SECONDS:
                found = await self._read()
                self._found = self._clock(), found
            return self._found[1]
