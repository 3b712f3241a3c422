"""How this cluster can give shares by demand, asked of its API server now and then: an upgrade changes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.claims.tier import Tier, tier_by_version
from tranche.kubernetes.component import Component, Readiness
from tranche.kubernetes.live import Live

_PERIOD_SECONDS = 600.0
"""Each agent asks: of 5,000 nodes that is 17 requests in a second."""
_RETRY_SECONDS = 2.0

_log = logging.getLogger(__name__)


async def ask_tier(connection: ApiConnection) -> Tier:
    """The tier by what the API server serves and which version it says; KubernetesUnavailable when it does not answer."""
    version = (await connection.ask("ask for the version", "GET", "/version")).accepted()
    served = await connection.ask("ask for resource claims", "GET", "/apis/resource.k8s.io/v1")
    if served.status != 404:
        served.accepted()
    return tier_by_version(str(version.get("gitVersion") or ""), served=served.status != 404)


class TierWatch:
    """A component: publishes the tier. `said` is the administrator's word, None to find out."""

    name = "tier"

    def __init__(
        self,
        connection: ApiConnection,
        said: Tier | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.latest: Live[Tier] = Live()
        self._connection = connection
        self._sleep = sleep
        self._said = said
        if said is not None:
            self.latest.publish(said)

    def ready(self) -> Readiness:
        """Ready once it is known."""
        known = self.latest.synced
        return Readiness(known, "" if known else "the API server has not said yet what it serves")

    async def run(self) -> None:
        """Ask until cancelled. What was known stays while nobody answers."""
        while True:
            pause = _PERIOD_SECONDS
            if self._said is None:
                try:
                    found = await ask_tier(self._connection)
                    if not self.latest.synced or found is not self.latest.value:
                        _log.info("shares are given", extra={"by": str(found)})
                    self.latest.publish(found)
                except TrancheError as error:
                    _log.info("tier not known", extra={"error": str(error)})
                    pause = _RETRY_SECONDS if not self.latest.synced else pause
            await self._sleep(pause)


class InTier:
    """A component that runs only while the cluster's tier is one of `tiers`; else it is ready and does nothing."""

    def __init__(self, component: Component, tier: Live[Tier], tiers: frozenset[Tier]) -> None:
        self.name = component.name
        self._component = component
        self._tier = tier
        self._tiers = tiers

    def ready(self) -> Readiness:
        """As the component says while it runs."""
        if not self._tier.synced:
            return Readiness(False, "it is not known yet how this cluster gives shares")
        return self._component.ready() if self._tier.value in self._tiers else Readiness(True)

    async def run(self) -> None:
        """Follow the tier until cancelled."""
        async for tier in self._tier.changes():
            if tier not in self._tiers:
                continue
            work = asyncio.ensure_future(self._component.run())
            try:
                await self._while_in(work)
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    async def _while_in(self, work: asyncio.Future[None]) -> None:
        """Until the tier is another; what the component fails with is the caller's."""
        left = asyncio.ensure_future(self._left())
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
        if work.done():
            work.result()
            raise RuntimeError(f"{self.name} ended without being asked to")

    async def _left(self) -> None:
        async for tier in self._tier.changes():
            if tier not in self._tiers:
                return
